from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0005_leftovers'),
    ]

    operations = [
        migrations.AddField(
            model_name='worker',
            name='refused',
            field=models.TextField(blank=True, default=''),
            preserve_default=False,
        ),
    ]

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0017_yard'),
    ]

    operations = [
        migrations.AddField(
            model_name='worker',
            name='weights',
            field=models.JSONField(blank=True, default=list),
        ),
    ]

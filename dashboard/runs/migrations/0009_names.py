from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0008_trace_wish'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='corpus',
            options={'verbose_name_plural': 'corpora'},
        ),
    ]

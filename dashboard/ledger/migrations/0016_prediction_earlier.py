from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("ledger", "0015_kernels")]

    operations = [
        migrations.AddField(
            model_name="prediction",
            name="earlier",
            field=models.PositiveIntegerField(null=True),
        ),
    ]

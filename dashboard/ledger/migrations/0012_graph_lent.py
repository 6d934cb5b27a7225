from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ledger", "0011_long_reason"),
    ]

    operations = [
        migrations.AddField(
            model_name="graph",
            name="lent",
            field=models.BooleanField(default=False),
        ),
    ]

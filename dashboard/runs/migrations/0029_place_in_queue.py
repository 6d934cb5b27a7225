from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0028_stop_on_nan"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="priority",
            field=models.SmallIntegerField(choices=[(-1, "Low"), (0, "Normal"), (1, "High")], default=0),
        ),
        migrations.AddField(
            model_name="run",
            name="run_on",
            field=models.CharField(blank=True, default="", max_length=300),
        ),
    ]

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("studies", "0004_caps_in_mib"),
    ]

    operations = [
        migrations.AddField(
            model_name="study",
            name="priority",
            field=models.SmallIntegerField(choices=[(-1, "Low"), (0, "Normal"), (1, "High")], default=0),
        ),
        migrations.AddField(
            model_name="study",
            name="run_on",
            field=models.CharField(blank=True, default="", max_length=300),
        ),
    ]

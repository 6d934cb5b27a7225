from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0018_weights"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="image_files",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="worker",
            name="more_image_files",
            field=models.PositiveIntegerField(default=0),
        ),
    ]

"""The held-out loss of a checkpoint, and how long training stood still for it; not known of those that are there."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_uid")]

    operations = [
        migrations.AddField("checkpoint", "held_out", models.FloatField(null=True)),
        migrations.AddField("checkpoint", "blocked", models.FloatField(default=0.0)),
    ]

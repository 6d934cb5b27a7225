"""The held-out loss of a checkpoint; not known of those that are there."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_uid")]

    operations = [migrations.AddField("checkpoint", "held_out", models.FloatField(null=True))]

"""A uid for every run made from now on. Those that are there have none: the folders of their checkpoints are named
without."""

from django.db import migrations, models

from dashboard.uids import new_uid


class Migration(migrations.Migration):
    dependencies = [("runs", "0021_lost_beginnings")]

    operations = [
        migrations.AddField("run", "uid", models.CharField(blank=True, default="", editable=False, max_length=32)),
        migrations.AlterField("run", "uid", models.CharField(blank=True, default=new_uid, editable=False, max_length=32)),
    ]

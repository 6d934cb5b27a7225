from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("runs", "0016_task")]

    operations = [
        migrations.RenameField("run", "broken", "injected"),
        migrations.RenameField("run", "over_hosts", "host_count"),
    ]

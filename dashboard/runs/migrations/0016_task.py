from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("runs", "0015_open_waits")]

    operations = [migrations.RenameField("run", "wish", "task")]

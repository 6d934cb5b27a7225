from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("runs", "0014_dropped_spans")]

    operations = [migrations.RenameField("run", "wish", "task")]

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("ledger", "0016_prediction_earlier")]

    operations = [migrations.RemoveField("graph", "kept_at")]

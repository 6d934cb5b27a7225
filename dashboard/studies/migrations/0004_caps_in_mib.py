"""A sweep of the memory cap kept its values in bytes; they are typed in MiB now, as in New run."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

MIB = 1024 * 1024


def to_mib(apps: Apps, _: BaseDatabaseSchemaEditor | None) -> None:
    """What is no number of bytes, such as "none", stays as it is."""
    for study in apps.get_model("studies", "Study").objects.filter(kind="sweep"):
        if study.settings.get("field") == "trace.memory_cap":
            study.settings["values"] = [_in_mib(text) for text in study.settings.get("values", ())]
            study.save(update_fields=("settings",))


def _in_mib(text: str) -> str:
    try:
        return repr(int(text) / MIB).removesuffix(".0")
    except ValueError:
        return text


class Migration(migrations.Migration):
    dependencies = [("studies", "0003_notes")]
    operations = [migrations.RunPython(to_mib, migrations.RunPython.noop)]

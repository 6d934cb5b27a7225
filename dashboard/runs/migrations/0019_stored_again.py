from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0018_dead_letters'),
    ]

    operations = [
        migrations.AddField(
            model_name='deadletter',
            name='store_asked_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='deadletter',
            name='tried_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(condition=models.Q(('store_asked_at__isnull', False)), fields=['store_asked_at'], name='dead_letters_asked_for'),
        ),
    ]

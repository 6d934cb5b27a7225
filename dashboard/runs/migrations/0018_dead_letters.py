import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0017_injected_host_count'),
    ]

    operations = [
        migrations.AddField(
            model_name='cursor',
            name='failures',
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.CreateModel(
            name='DeadLetter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rank', models.IntegerField()),
                ('channel', models.CharField(max_length=8)),
                ('start', models.BigIntegerField()),
                ('end', models.BigIntegerField()),
                ('error', models.CharField(max_length=400)),
                ('at', models.DateTimeField(auto_now_add=True)),
                ('data', models.BinaryField()),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='dead_letters', to='runs.attempt')),
            ],
            options={
                'ordering': ('id',),
                'constraints': [models.UniqueConstraint(fields=('attempt', 'rank', 'channel', 'start'), name='one_dead_letter_a_record')],
            },
        ),
    ]

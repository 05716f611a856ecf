import os
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config

from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config
from mmlaplacian.launch.processes import prepare_device

CPU_ONLY = pytest.mark.skipif(
    torch.cuda.is_available(), reason='only without accelerators'
)


def config():
    heads = [
        dict(norm_cfg=dict(type='SyncBN')),
        dict(norm_cfg=dict(type='GN')),
    ]
    return Config(
        dict(
            optim_wrapper=dict(type='OptimWrapper'),
            model=dict(auxiliary_head=heads),
        )
    )


def test_sync_bn_in_a_single_process(capsys):
    ours = config()
    prepare_device(ours, 'none')
    heads = ours.model.auxiliary_head
    assert [head.norm_cfg.type for head in heads] == ['BN', 'GN']
    assert (
        'SyncBN is replaced by BN in this run (1 places)'
        in capsys.readouterr().out
    )


@CPU_ONLY
def test_amp_on_a_cpu():
    with pytest.raises(InputError, match='--amp needs an accelerator'):
        prepare_device(config(), 'none', amp=True)


@CPU_ONLY
@pytest.mark.parametrize('launcher', ['slurm', 'mpi'])
def test_cluster_launchers_on_a_cpu(launcher):
    with pytest.raises(InputError, match='torchrun'):
        prepare_device(config(), launcher)


@CPU_ONLY
def test_pytorch_launcher_without_torchrun(monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    with pytest.raises(InputError, match='RANK.*torchrun --nproc_per_node'):
        prepare_device(config(), 'pytorch')


def test_missing_config():
    with pytest.raises(InputError, match=r'none at .*gone\.py'):
        load_config('gone.py')


def test_broken_config(tmp_path):
    path = tmp_path / 'broken.py'
    path.write_text('model = dict(')
    with pytest.raises(InputError, match=r'broken\.py does not parse'):
        load_config(str(path))


def test_no_thread_of_gloo_is_left(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(
        'import os, torch\n'
        'from pathlib import Path\n'
        'from mmlaplacian.launch.processes import leave_processes\n'
        'def names():\n'
        '    tasks = Path("/proc/self/task").iterdir()\n'
        '    return [(task / "comm").read_text() for task in tasks]\n'
        'def train():\n'
        '    model = torch.nn.Linear(2, 2)\n'
        '    model = torch.nn.parallel.DistributedDataParallel(model)\n'
        '    model.itself = model\n'
        '    model(torch.ones(1, 2)).sum().backward()\n'
        '    print("before:", any("gloo" in name for name in names()))\n'
        'torch.distributed.init_process_group("gloo", rank=0, world_size=1,\n'
        '    init_method="file://" + os.environ["RENDEZVOUS"])\n'
        'train()\n'
        'leave_processes()\n'
        'print("after:", any("gloo" in name for name in names()))\n'
    )
    result = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, 'RENDEZVOUS': str(tmp_path / 'rendezvous')},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == 'before: True\nafter: False\n'

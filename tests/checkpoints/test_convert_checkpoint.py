"""tools/convert_checkpoint.py on files of mmengine, timm and others."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner, load_checkpoint
from mmengine.utils import digit_version
from pvt_layouts import build
from torch import nn

from mmlaplacian.checkpoints import convert
from mmlaplacian.checks.weights import check_checkpoint, check_pretrained
from mmlaplacian.errors import InputError
from mmlaplacian.models import LaplacianFormer

TOOL = Path(__file__).resolve().parents[2] / 'tools/convert_checkpoint.py'


def run(cwd, *command, fails=False, limit='unlimited'):
    """Run the command in another directory, with a limit on file sizes."""
    result = subprocess.run(
        [
            *('bash', '-c', f'ulimit -f {limit}; exec "$@"', 'run'),
            *(sys.executable, TOOL, *map(str, command)),
        ],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    text = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, text[-3000:]
    if fails:
        assert 'Traceback' not in text
    return text


class Classifier(BaseModel):
    def __init__(self):
        super().__init__()
        self.backbone = LaplacianFormer('nano')
        self.head = nn.Linear(128, 10)

    def forward(self, inputs, labels, mode='loss'):
        scores = self.head(self.backbone(inputs)[-1].mean((-2, -1)))
        return dict(loss=nn.functional.cross_entropy(scores, labels))


class Images(torch.utils.data.Dataset):
    metainfo = dict(classes=('cat', 'dog'), palette=[(0, 1, 2), (3, 4, 5)])

    def __len__(self):
        return 4

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A checkpoint of a runner with EMA, and both sets of weights."""
    work_dir = tmp_path_factory.mktemp('work')
    runner = Runner(
        Classifier(),
        str(work_dir),
        train_dataloader=dict(
            dataset=Images(),
            batch_size=2,
            collate_fn=dict(type='default_collate'),
            sampler=dict(type='DefaultSampler', shuffle=False),
        ),
        train_cfg=dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-2)),
        custom_hooks=[dict(type='EMAHook', momentum=0.1)],
        experiment_name='trained',
        cfg=dict(note='text'),
    )
    runner.train()
    hook = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook')
    return work_dir / 'epoch_2.pth', runner.model, hook.ema_model.module


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def load(path):
    return torch.load(path, weights_only=True)


def pretrained_config(path, arch='nano'):
    init_cfg = dict(type='Pretrained', checkpoint=str(path))
    backbone = dict(type='LaplacianFormer', arch=arch, init_cfg=init_cfg)
    return Config(dict(model=dict(backbone=backbone)))


def test_backbone_of_a_trained_classifier(trained, tmp_path):
    path, last, mean = trained
    text = run(tmp_path, 'backbone', path, 'new/nano.pth')
    assert 'skipped: head.weight (10, 128)' in text
    assert 'new/nano.pth: LaplacianFormer nano' in text
    out = tmp_path / 'new/nano.pth'
    content = load(out)
    LaplacianFormer('nano').load_state_dict(content['state_dict'])
    # EMAHook saves the averaged weights as those that mmengine loads.
    assert_same(content['state_dict'], mean.backbone.state_dict())
    name = 'stages.0.norm.bias'
    assert not torch.equal(
        content['state_dict'][name], last.backbone.state_dict()[name]
    )
    config = pretrained_config(out)
    check_pretrained(config)
    model = LaplacianFormer(
        'nano', init_cfg=config.model.backbone.init_cfg.to_dict()
    )
    model.init_weights()
    assert_same(model.state_dict(), mean.backbone.state_dict())


def test_averaged_backbone(trained, tmp_path):
    path, last, mean = trained
    content, _ = convert.extract_backbone(str(path), ema=True)
    assert_same(content['state_dict'], mean.backbone.state_dict())
    other = tmp_path / 'other.pth'
    states = dict(
        model=last.state_dict(),
        model_ema={f'module.{n}': t for n, t in mean.state_dict().items()},
    )
    torch.save(states, other)
    content, _ = convert.extract_backbone(str(other), ema=True)
    assert_same(content['state_dict'], mean.backbone.state_dict())
    content, _ = convert.extract_backbone(str(other))
    assert_same(content['state_dict'], last.backbone.state_dict())


def test_another_size(trained):
    with pytest.raises(InputError, match='of LaplacianFormer tiny') as error:
        convert.extract_backbone(str(trained[0]), 'tiny')
    assert 'missing, expected' in str(error.value)


def test_no_known_size(tmp_path):
    path = tmp_path / 'x.pth'
    torch.save(
        LaplacianFormer('nano', attention=dict(share_qk=True)).state_dict(),
        path,
    )
    with pytest.raises(InputError, match='none of .*nano.*--arch SIZE shows'):
        convert.extract_backbone(str(path))


def test_files_stay(trained, tmp_path):
    out = tmp_path / 'nano.pth'
    out.write_text('mine')
    text = run(tmp_path, 'backbone', trained[0], out, fails=True)
    assert f'{out} exists already; pass --force' in text
    assert out.read_text() == 'mine'
    convert.write_checkpoint(dict(epoch=3), str(out), force=True)
    assert load(out) == dict(epoch=3)
    with pytest.raises(InputError, match='got a folder'):
        convert.write_checkpoint({}, str(tmp_path), force=True)


def test_no_half_files(trained, tmp_path):
    text = run(
        tmp_path, 'backbone', trained[0], 'nano.pth', fails=True, limit=100
    )
    assert 'File too large' in text
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope='module')
def pvt(tmp_path_factory):
    path = tmp_path_factory.mktemp('pvt') / 'pvt_v2.pth'
    torch.save(dict(model=build('original', 2).state_dict()), path)
    return path


def test_warm_start(pvt, tmp_path):
    command = ('warm-start', pvt, 'nano.pth', '--arch', 'nano')
    text = run(tmp_path, *command)
    assert 'layout: original' in text
    assert '  block1.0.attn.sr.weight (16, 16, 8, 8)' in text
    assert '  stages.0.blocks.0.attn.local_conv.weight (16, 1, 3, 3)' in text
    assert 'initialised with seed 0; --min-share was 50%' in text
    out = tmp_path / 'nano.pth'
    check_pretrained(pretrained_config(out))
    content = load(out)
    ours = LaplacianFormer('nano')
    ours.load_state_dict(content['state_dict'])
    theirs = load(pvt)['model']
    assert torch.equal(
        ours.stages[0].patch_embed.proj.weight,
        theirs['patch_embed1.proj.weight'],
    )
    meta = content['meta']
    assert meta['initialised'] and meta['source'] == 'pvt_v2.pth'
    for name in meta['initialised']:
        assert f'  {name} ' in text
    data = out.read_bytes()
    # Parameters without a source have the same random values every time.
    torch.manual_seed(5)
    content, _ = convert.warm_start(str(pvt), 'nano')
    convert.write_checkpoint(content, str(out), force=True)
    assert out.read_bytes() == data


def test_too_small_a_share(pvt, tmp_path):
    command = ('warm-start', pvt, 'tiny.pth', '--arch', 'tiny')
    text = run(tmp_path, *command, fails=True)
    assert 'taken: 0 of ' in text
    assert 'covers 0.00% of the parameters of tiny' in text
    assert not list(tmp_path.iterdir())


def test_warm_start_of_a_wrong_file(trained, tmp_path):
    with pytest.raises(InputError, match='LaplacianFormer already'):
        convert.warm_start(str(trained[0]), 'nano', trusted=True)
    text = tmp_path / 'x.pth'
    text.write_text('hello')
    with pytest.raises(InputError, match='x.pth'):
        convert.warm_start(str(text), 'nano')


class Evil:
    def __reduce__(self):
        return Path.touch, (Path('touched'),)


def test_warm_start_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict={}, extra=Evil()), 'evil.pth')
    with pytest.raises(InputError, match='--trust'):
        convert.warm_start('evil.pth', 'nano')
    assert not Path('touched').exists()


def only(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


def assert_hash(path):
    digits = path.stem.rpartition('-')[2]
    assert len(digits) == 8
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(digits)


def test_publish(trained, tmp_path):
    path, _, mean = trained
    text = run(tmp_path, 'publish', path, 'out/net.pth')
    for part in ('message_hub', 'optimizer', 'ema_state_dict'):
        assert part in text.partition('skipped:')[2].partition('\n')[0]
    out = only(tmp_path, 'out/net-*.pth')
    assert str(out.relative_to(tmp_path)) in text
    assert_hash(out)
    assert out.stat().st_size < path.stat().st_size / 3
    content = load(out)
    assert set(content) == {'meta', 'state_dict'}
    assert_same(content['state_dict'], mean.state_dict())
    assert content['meta']['dataset_meta'] == Images.metainfo
    assert content['meta']['epoch'] == 2
    assert 'note' in content['meta']['cfg']
    model = Classifier()
    load_checkpoint(model, str(out), strict=True)
    assert_same(model.state_dict(), mean.state_dict())
    check_checkpoint(model, str(out))
    with pytest.raises(InputError, match='exists already'):
        convert.publish(str(path), str(tmp_path / 'out/net.pth'))


@pytest.mark.skipif(
    digit_version(torch.__version__) < digit_version('2.6'),
    reason='older torch loads everything by default',
)
def test_why_publish_is_needed(trained):
    with pytest.raises(Exception, match='HistoryBuffer'):
        load(trained[0])


def test_publish_keeps_plain_data_alone(tmp_path):
    path = tmp_path / 'x.pth'
    meta = dict(
        dataset_meta=dict(classes=('a',), label_map={0: 1}),
        score=torch.tensor(0.5),
        hook=TOOL,
        nested=[{'x': {1, 2}}],
    )
    view = torch.zeros(1000, 1000)[:2, :2].T
    torch.save(dict(model=dict(weight=view), meta=meta), path)
    (out,), dropped = convert.publish(str(path), str(tmp_path / 'y'))
    assert dropped == ['meta.hook', 'meta.nested']
    content = load(out)
    expected = dict(dataset_meta=meta['dataset_meta'], score=0.5)
    assert content['meta'] == expected
    assert_same(content['state_dict'], dict(weight=view))
    assert out.name.startswith('y-') and out.stat().st_size < 10000


def test_safetensors(trained, tmp_path):
    safe = pytest.importorskip('safetensors')
    path, _, mean = trained
    arguments = (str(path), str(tmp_path / 'net.pth'), True)
    files, _ = convert.publish(*arguments)
    again, _ = convert.publish(*arguments, force=True)
    assert again == files and len(list(tmp_path.iterdir())) == 2
    out = only(tmp_path, 'net-*.safetensors')
    assert_hash(out)
    assert_hash(only(tmp_path, 'net-*.pth'))
    with safe.safe_open(out, 'pt') as file:
        meta = json.loads(file.metadata()['meta'])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert_same(state, mean.state_dict())
    assert meta['dataset_meta']['classes'] == ['cat', 'dog']
    content, _ = convert.extract_backbone(str(out))
    assert_same(content['state_dict'], mean.backbone.state_dict())
    out.write_bytes(b'hello')
    with pytest.raises(InputError, match='safetensors'):
        convert.extract_backbone(str(out))


def test_safetensors_is_not_there(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(InputError, match='pip install safetensors'):
        convert.publish(str(trained[0]), str(tmp_path / 'x.pth'), True)
    assert not list(tmp_path.iterdir())

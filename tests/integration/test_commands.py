"""Commands, as a user runs them in another directory."""

import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import cv2
import pytest
import torch
from helpers import run_python as run

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/digits/mask-rcnn_laplacianformer-nano_fpn_digits.py'
COCO_CONFIG = (
    ROOT / 'configs/mask_rcnn/mask-rcnn_laplacianformer-tiny_fpn_1x_coco.py'
)


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def shell(cwd, *command, fails=False, **variables):
    result = subprocess.run(
        ['bash', *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            'OMP_NUM_THREADS': '1',
            'PYTHON': sys.executable,
            'PORT': free_port(),
            **variables,
        },
    )
    text = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, text[-3000:]
    return text


def train(cwd, *options, config=CONFIG, **keywords):
    return run(
        cwd,
        ROOT / 'tools/train.py',
        config,
        *options,
        '--cfg-options',
        'train_cfg.max_epochs=2',
        'train_dataloader.batch_size=4',
        'val_dataloader.batch_size=4',
        'default_hooks.checkpoint.max_keep_ckpts=-1',
        *keywords.pop('overrides', ()),
        **keywords,
    )


@pytest.fixture(scope='module')
def place(tmp_path_factory, digit_scenes):
    """A directory with data/digits in it, far from the checkout."""
    folder = tmp_path_factory.mktemp('place')
    (folder / 'data').mkdir()
    (folder / 'data' / 'digits').symlink_to(digit_scenes)
    return folder


@pytest.fixture(scope='module')
def trained(place, openmmlab):
    """Text and work directory of two epochs."""
    text = train(place, '--work-dir', 'work', '--auto-scale-lr')
    return text, place / 'work'


def test_train_evaluates_and_saves(trained):
    text, work = trained
    assert 'starts from random weights' in text
    assert 'bbox_mAP' in text and 'segm_mAP' in text and 'eta' in text
    # Base batch size 8, four images a step.
    assert 'Scaling the original LR by 0.5' in text
    assert (work / 'epoch_2.pth').is_file()


def test_resume_goes_on(trained, place):
    text = train(
        place,
        *('--work-dir', 'work', '--resume'),
        overrides=['train_cfg.max_epochs=3', 'val_cfg=None']
        + ['val_dataloader=None', 'val_evaluator=None'],
    )
    assert 'resumed epoch: 2' in text
    assert 'Epoch(train) [3]' in text and 'Epoch(train) [2]' not in text


def test_test_writes_metrics_pictures_and_predictions(trained, place):
    text = run(
        place,
        *(ROOT / 'tools/test.py', CONFIG, 'work/epoch_2.pth'),
        *('--work-dir', 'tested', '--show-dir', 'shown', '--out', 'out.pkl'),
    )
    assert 'segm_mAP' in text
    assert len(list((place / 'shown').iterdir())) == 4
    picture = cv2.imread(str(place / 'shown/000000.png'))
    assert picture.shape == (192, 384, 3)
    assert len(pickle.loads((place / 'out.pkl').read_bytes())) == 4


def test_image_demo(trained, place, digit_scenes):
    folder = place / 'images'
    folder.mkdir()
    for name in ('000000.png', '000001.png'):
        (folder / name).write_bytes((digit_scenes / 'val' / name).read_bytes())
    (folder / 'broken.png').write_bytes(b'not a picture')
    (folder / 'empty.jpg').write_bytes(b'')
    (folder / 'notes.txt').write_text('not an image')
    demo = (ROOT / 'tools/image_demo.py', folder, CONFIG, 'work/epoch_2.pth')
    text = run(place, *demo, '--score-thr', '0', fails=True)
    assert 'broken.png: cannot be decoded, skipped' in text
    assert 'empty.jpg: cannot be decoded, skipped' in text
    assert '2 images could not be read' in text
    result = json.loads((place / 'outputs/000000.png.json').read_text())
    assert result['image'] == '000000.png'
    assert result['objects']
    for found in result['objects']:
        assert found['class'] in '0123456789' and 0 <= found['score'] <= 1
        assert len(found['box']) == 4
        assert found['mask']['size'] == [192, 192]
    assert cv2.imread(str(place / 'outputs/000000.png')) is not None
    text = run(place, *demo, '--out-dir', folder, fails=True)
    assert 'would overwrite' in text


def test_image_demo_takes_classes_from_the_config(trained, place):
    state = torch.load(trained[1] / 'epoch_2.pth', weights_only=False)
    torch.save(state['state_dict'], place / 'bare.pth')
    picture = place / 'data/digits/val/000000.png'
    run(
        place,
        *(ROOT / 'tools/image_demo.py', picture, CONFIG, 'bare.pth'),
        *('--score-thr', '0', '--out-dir', 'named'),
    )
    result = json.loads((place / 'named/000000.png.json').read_text())
    assert result['objects']
    assert {each['class'] for each in result['objects']} <= set('0123456789')


def test_checkpoint_of_another_model(trained, place):
    text = run(
        place,
        *(ROOT / 'tools/test.py', CONFIG, 'work/epoch_2.pth'),
        *('--cfg-options', 'model.backbone.arch=tiny'),
        'model.neck.in_channels=[64,128,320,512]',
        fails=True,
    )
    assert 'does not hold the weights' in text
    assert 'Traceback' not in text


def test_missing_weights_and_missing_data(place):
    text = run(place, ROOT / 'tools/train.py', COCO_CONFIG, fails=True)
    assert '--from-scratch' in text and 'Traceback' not in text
    text = run(
        place,
        ROOT / 'tools/train.py',
        COCO_CONFIG,
        '--from-scratch',
        fails=True,
    )
    assert 'data/coco/train2017' in text and 'Traceback' not in text


def test_config_without_our_import(trained, place):
    text = Path(trained[1] / CONFIG.name).read_text()
    assert 'custom_imports' in text
    config = place / 'bare.py'
    start = text.index('custom_imports')
    end = text.index('\n', text.index(')', start))
    config.write_text(text[:start] + text[end:])
    text = run(
        place,
        *(ROOT / 'tools/test.py', config, 'work/epoch_2.pth'),
        *('--work-dir', 'tested'),
    )
    assert 'segm_mAP' in text


def test_unreadable_image_is_found_before_training(
    place, tmp_path, digit_scenes
):
    data = tmp_path / 'digits'
    shutil.copytree(digit_scenes, data)
    (data / 'val' / '000002.png').write_bytes(b'not a picture')
    text = train(
        place,
        *('--work-dir', tmp_path / 'work'),
        overrides=[
            f'val_dataloader.dataset.data_root={data}',
            f'val_evaluator.ann_file={data}/annotations/val.json',
        ],
        fails=True,
    )
    assert '000002.png is empty or cannot be decoded' in text
    assert 'train.py: ' in text.splitlines()[-1]
    assert not (tmp_path / 'work').exists()


def test_two_processes_on_a_cpu(trained, place, tmp_path):
    text = shell(
        place,
        *(ROOT / 'tools/dist_train.sh', CONFIG, 2),
        *('--work-dir', tmp_path / 'work', '--cfg-options'),
        *('train_cfg.max_epochs=1', 'train_dataloader.batch_size=2'),
    )
    assert 'bbox_mAP' in text
    assert 'Distributed training: True' in text
    assert 'GPU number: 2' in text
    checkpoint = tmp_path / 'work' / 'epoch_1.pth'
    text = shell(
        place,
        *(ROOT / 'tools/dist_test.sh', CONFIG, checkpoint, 2),
        *('--work-dir', tmp_path / 'work'),
    )
    assert 'segm_mAP' in text and 'Distributed training: True' in text


@pytest.mark.parametrize('name', ['dist_train', 'dist_test', 'slurm_train'])
def test_scripts_print_their_usage(name, tmp_path):
    text = shell(tmp_path, ROOT / f'tools/{name}.sh', fails=True)
    assert text.startswith(f'{name}.sh ')


def test_slurm_script_passes_its_settings(tmp_path):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    text = shell(
        tmp_path,
        *(ROOT / 'tools/slurm_train.sh', 'gpu', 'job', 'c.py', '--amp'),
        PATH=f'{tmp_path}:{os.environ["PATH"]}',
        GPUS='16',
    )
    assert '-p gpu --job-name=job --gres=gpu:8 --ntasks=16' in text
    assert 'tools/train.py c.py --launcher slurm --amp' in text


def test_retinanet_with_augmentation(place, tmp_path, openmmlab):
    config = CONFIG.with_name('retinanet_laplacianformer-nano_fpn_digits.py')
    work = tmp_path / 'work'
    train(place, '--work-dir', work, config=config)
    tested = (
        *(ROOT / 'tools/test.py', config, work / 'epoch_2.pth'),
        *('--work-dir', work),
    )
    # After two steps every score is low.
    options = ('--cfg-options', 'model.test_cfg.score_thr=0')
    assert 'bbox_mAP' in run(place, *tested, '--tta', *options)
    text = run(
        place,
        *(ROOT / 'tools/test.py', CONFIG, work / 'epoch_2.pth', '--tta'),
        fails=True,
    )
    assert 'does not define it' in text and 'Traceback' not in text


def test_segmentation_from_training_to_pictures(place, tmp_path, openmmlab):
    config = CONFIG.with_name('semantic-fpn_laplacianformer-nano_digits.py')
    work = tmp_path / 'work'
    text = train(place, '--work-dir', work, config=config)
    assert 'mIoU' in text and 'SyncBN is replaced by BN in this run' in text
    text = run(
        place,
        *(ROOT / 'tools/test.py', config, work / 'epoch_2.pth'),
        *('--work-dir', work, '--show-dir', tmp_path / 'shown'),
        *('--out', tmp_path / 'out.pkl'),
    )
    assert 'mIoU' in text
    assert len(list((tmp_path / 'shown').rglob('*.png'))) == 4
    assert len(pickle.loads((tmp_path / 'out.pkl').read_bytes())) == 4
    picture = place / 'data/digits/val/000000.png'
    text = run(
        place,
        *(ROOT / 'tools/image_demo.py', picture, config),
        *(work / 'epoch_2.pth', '--out-dir', tmp_path / 'drawn'),
    )
    assert str(picture) in text
    result = json.loads((tmp_path / 'drawn/000000.png.json').read_text())
    assert sum(result['shares'].values()) == pytest.approx(1, abs=1e-3)
    assert set(result['shares']) <= {'background', *'0123456789'}
    labels = cv2.imread(str(tmp_path / 'drawn' / result['labels']), -1)
    assert labels.shape == (192, 192) and labels.max() <= 10
    drawn = cv2.imread(str(tmp_path / 'drawn/000000.png'))
    assert drawn.shape == (192, 192, 3)


@pytest.mark.parametrize('name', ['mask-rcnn', 'semantic-fpn'])
def test_browse_dataset(name, place, tmp_path, openmmlab):
    (config,) = CONFIG.parent.glob(f'{name}_*.py')
    tool = (
        ROOT / 'tools/analysis_tools/browse_dataset.py',
        config,
        '--number',
        2,
    )
    text = run(place, *tool, '--out-dir', tmp_path / 'seen')
    assert '2 pictures' in text
    pictures = sorted((tmp_path / 'seen').iterdir())
    assert [p.name for p in pictures] == ['000000.png', '000001.png']
    raw = cv2.imread(str(place / 'data/digits/train/000000.png'))
    drawn = cv2.imread(str(pictures[0]))
    if name == 'semantic-fpn':
        # The picture may have any size, and the label map darkens it.
        assert max(drawn.shape) <= 192
        assert drawn.mean() < 0.8 * raw.mean()
        return
    assert drawn.shape == (192, 192, 3)
    difference = cv2.absdiff(drawn, cv2.resize(raw, (192, 192)))
    assert (difference > 50).mean() > 0.01


def test_print_config(tmp_path, openmmlab):
    text = run(
        tmp_path,
        *(ROOT / 'tools/misc/print_config.py', COCO_CONFIG),
        *('--cfg-options', 'train_dataloader.batch_size=7'),
    )
    assert "type='LaplacianFormer'" in text and 'batch_size=7' in text
    assert 'max_epochs=12' in text


README_EXAMPLES = re.findall(
    r'```python\n(.*?)```', (ROOT / 'configs/README.md').read_text(), re.S
)


@pytest.mark.parametrize(
    'number, folder',
    enumerate(['data/pets/train', 'data/fields/images/train']),
)
def test_own_data_as_in_the_readme(place, number, folder, openmmlab):
    """The examples of configs/README.md parse and ask for the data."""
    example = textwrap.dedent(README_EXAMPLES[number])
    config = place / 'own.py'
    config.write_text(example.replace("'./configs", f"'{ROOT}/configs"))
    text = run(
        place, ROOT / 'tools/train.py', config, '--from-scratch', fails=True
    )
    assert folder in text and 'Traceback' not in text


@pytest.mark.parametrize(
    'tool', ['train', 'test', 'image_demo', 'prepare_data']
)
def test_help(tool, tmp_path, openmmlab):
    text = run(tmp_path, ROOT / f'tools/{tool}.py', '--help')
    assert f'usage: {tool}.py' in text

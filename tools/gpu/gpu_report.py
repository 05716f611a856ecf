"""Join the results of gpu_check.sh in gpu_check.json and gpu_check.md.

    python tools/gpu/gpu_report.py PARTS OUT

PARTS is the folder that the steps wrote to, and OUT that of the two files. The
exit status is 1 if a step failed or wrote no result.
"""

import argparse
import csv
import json
import platform
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch

from cuda_ops.common import launcher
from cuda_ops.common.nvcc import BuildError, nvcc

RESULTS = ('benchmark_ops', 'benchmark_step')


def machine() -> dict:
    """Versions, GPU and launch path that the figures belong to."""
    try:
        compiler = nvcc()
    except BuildError as error:
        compiler = str(error)
    found = {
        'python': platform.python_version(),
        'torch': torch.__version__,
        'nvcc': compiler,
    }
    if torch.cuda.is_available():
        found['gpu'] = torch.cuda.get_device_name(0)
        found['path'] = launcher.status(0)
    return found


def read_steps(path: Path) -> list[dict]:
    """Name, seconds and exit status of each step."""
    with path.open(newline='') as file:
        return [
            {'step': name, 'seconds': int(seconds), 'status': int(status)}
            for name, seconds, status in csv.reader(file, delimiter='\t')
        ]


def read_tests(path: Path) -> dict:
    """Counts and failed tests of pytest's report; empty without one."""
    if not path.is_file():
        return {}
    suite = ElementTree.parse(path).getroot().find('testsuite')
    counts = {
        name: int(suite.get(name))
        for name in ('tests', 'failures', 'errors', 'skipped')
    }
    counts['failed'] = [
        f'{case.get("classname")}::{case.get("name")}'
        for case in suite.iter('testcase')
        if case.find('failure') is not None or case.find('error') is not None
    ]
    return counts


def table(rows: list[dict]) -> str:
    """Markdown table of flat rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ['| ' + ' | '.join(names) + ' |', '|' + '---|' * len(names)]
    for row in rows:
        cells = (str(row.get(name, '')) for name in names)
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('parts', type=Path, help='folder with the results')
    parser.add_argument('out', type=Path, help='folder for the two files')
    args = parser.parse_args()
    parts, out = args.parts, args.out
    report = {
        'machine': machine(),
        'steps': read_steps(parts / 'steps.tsv'),
        'tests': read_tests(parts / 'tests.xml'),
    }
    for name in RESULTS:
        path = parts / f'{name}.json'
        report[name] = json.loads(path.read_text()) if path.is_file() else None
    (out / 'gpu_check.json').write_text(json.dumps(report, indent=2) + '\n')

    page = ['# GPU check', table([report['machine']]), table(report['steps'])]
    if report['tests']:
        tests = dict(report['tests'])
        failed = tests.pop('failed')
        page += ['## Tests', table([tests])]
        page += ['\n'.join(f'- failed: {name}' for name in failed)]
    for name in RESULTS:
        own = parts / f'{name}.md'
        if own.is_file():
            text = own.read_text().strip()
        elif report[name]:
            text = table(report[name]['rows'])
        else:
            text = 'no result: see gpu_check.log'
        page += [f'## {name}', text]
    text = '\n\n'.join(filter(None, page)) + '\n'
    (out / 'gpu_check.md').write_text(text)
    print(text)
    complete = report['tests'] and all(report[name] for name in RESULTS)
    failed = any(step['status'] != 0 for step in report['steps'])
    return 0 if complete and not failed else 1


if __name__ == '__main__':
    sys.exit(main())

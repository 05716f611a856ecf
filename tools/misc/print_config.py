"""Print a config after merging its bases and overrides."""

import argparse
import sys

from mmlaplacian.check_env import check_or_exit

check_or_exit('print_config.py')

from mmengine.config import DictAction

from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override config entries',
    )
    args = parser.parse_args()
    try:
        config = load_config(args.config, args.cfg_options)
    except InputError as error:
        sys.exit(f'print_config.py: {error}')
    print(config.pretty_text)


if __name__ == '__main__':
    main()

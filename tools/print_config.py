"""Print a config with all its bases and overrides put together."""

import argparse
import sys

from mmlaplacian.check_env import check_or_exit

check_or_exit('print_config.py')

from mmengine.config import DictAction

from mmlaplacian import apis
from mmlaplacian.errors import InputError


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE'
    )
    args = parser.parse_args()
    try:
        config = apis.load_config(args.config, args.cfg_options)
    except InputError as error:
        sys.exit(f'print_config.py: {error}')
    print(config.pretty_text)


if __name__ == '__main__':
    main()

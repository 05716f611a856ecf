_base_ = '../_base_/recipes/semantic-fpn_digits.py'

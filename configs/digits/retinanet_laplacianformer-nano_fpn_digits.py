_base_ = '../_base_/recipes/retinanet_fpn_digits.py'

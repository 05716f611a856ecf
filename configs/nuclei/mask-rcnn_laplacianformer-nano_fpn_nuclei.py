_base_ = '../_base_/recipes/mask-rcnn_fpn_nuclei.py'

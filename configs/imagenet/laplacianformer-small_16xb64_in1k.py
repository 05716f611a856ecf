_base_ = '../_base_/recipes/classifier_300e_in1k.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.1))

_base_ = '../_base_/recipes/classifier_300e_in1k.py'
attention = dict(share_qk=True, kernel='gaussian', whitening='row')
model = dict(backbone=dict(attention=attention))

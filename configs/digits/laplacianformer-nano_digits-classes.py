_base_ = '../_base_/recipes/classifier_digits.py'

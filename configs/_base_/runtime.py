# Runtime of all tasks, as in default_runtime of mmdet 3.3 and mmseg 1.2. The
# recipes contain the keys that differ between tasks.
custom_imports = dict(imports=['mmlaplacian'], allow_failed_imports=False)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
log_level = 'INFO'
load_from = None
resume = False

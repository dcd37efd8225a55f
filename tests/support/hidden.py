"""The variables with which no program sees a GPU of this machine: its results are not the CPU's."""

_NAMES = ("GGML_VK_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
HIDDEN = dict.fromkeys(_NAMES, "")

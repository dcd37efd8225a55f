# The image of rayservice.yaml: Ray's own with tampu's wheel; built in the root of the repository.
FROM rayproject/ray:2.60.0-py311
COPY dist/*.whl /tmp/wheels/
# The wheel is the version.
# hadolint ignore=DL3013
RUN wheel=$(ls /tmp/wheels/*.whl) && pip install --no-cache-dir "${wheel}[ray]"

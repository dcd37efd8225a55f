# The server in an image, from the wheel that `make wheel` writes; docs/deploy.md says how it is run.
FROM python:3.11-slim-bookworm AS install
COPY dist/*.whl /wheels/
RUN python -m venv --without-pip /opt/tampu \
 && pip --python /opt/tampu/bin/python install --no-cache-dir --no-compile /wheels/*.whl

FROM python:3.11-slim-bookworm
COPY --from=install /opt/tampu /opt/tampu
RUN mkdir /data && chown 10001:10001 /data
# What is written is in /data, and nothing else: the root may be read-only.
ENV PATH=/opt/tampu/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/data \
    TAMPU_MODELS=/data/models \
    TAMPU_CACHE=/data/cache \
    TAMPU_STATE=/data/state \
    TAMPU_HOST=0.0.0.0:11434
USER 10001:10001
VOLUME /data
EXPOSE 11434
STOPSIGNAL SIGTERM
ENTRYPOINT ["tampu"]
CMD ["serve"]

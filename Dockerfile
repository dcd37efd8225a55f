# The server in an image, from the wheel that `make wheel` writes; docs/deploy.md says how it is run.
FROM debian:bookworm-slim AS build
# Debian's own versions are the versions.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends binutils ca-certificates python3-pip

# The packages that Python needs here, and nothing else of a system: no shell, no programs.
# status.d is where scanners look for what an image without dpkg has.
WORKDIR /packages
RUN apt-get download base-files libbz2-1.0 libc6 libexpat1 libffi8 libgcc-s1 liblzma5 \
        libpython3.11-minimal libpython3.11-stdlib libsqlite3-0 libssl3 libstdc++6 libuuid1 media-types \
        python3.11-minimal zlib1g \
 && mkdir --parents /root-fs/var/lib/dpkg/status.d /root-fs/etc/ssl/certs \
 && for package in *.deb; do \
        dpkg --extract "$package" /root-fs \
         && dpkg --field "$package" > "/root-fs/var/lib/dpkg/status.d/${package%%_*}" || exit 1; \
    done \
 && cp /etc/ssl/certs/ca-certificates.crt /root-fs/etc/ssl/certs \
 && echo 'tampu:x:10001:10001::/data:/nonexistent' > /root-fs/etc/passwd \
 && echo 'tampu:x:10001:' > /root-fs/etc/group \
 && mkdir /root-fs/data \
 && chown 10001:10001 /root-fs/data \
 && rm -r /root-fs/usr/share/man /root-fs/usr/share/lintian /root-fs/usr/lib/x86_64-linux-gnu/gconv \
 && find /root-fs/usr/share/doc -type f ! -name copyright -delete

COPY dist/*.whl /wheels/
RUN python3.11 -m venv --without-pip /opt/tampu \
 && pip --python /opt/tampu/bin/python install --no-cache-dir --no-compile /wheels/*.whl

# zstandard has 22 MB of symbols, numpy its tests, and nothing here calls hf-xet.
WORKDIR /opt/tampu/lib/python3.11/site-packages
RUN pip --python /opt/tampu/bin/python uninstall --yes hf-xet \
 && strip --strip-unneeded zstandard/*.so tokenizers/*.so cryptography/hazmat/bindings/*.so yaml/*.so \
 && find numpy -type d -name tests -prune -exec rm -r {} + \
 && mkdir /root-fs/opt \
 && cp --archive /opt/tampu /root-fs/opt \
 && chroot /root-fs /opt/tampu/bin/tampu --version

FROM scratch
COPY --from=build /root-fs /
# What is written is in /data, and nothing else: the root may be read-only.
ENV PATH=/opt/tampu/bin:/usr/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
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

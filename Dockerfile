# One image for every service of docker-compose.yml; the service chooses the command.
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=""
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 TRAINYARD_HOME=/data
WORKDIR /app
RUN useradd --system --uid 10001 --home-dir /data trainyard && mkdir -p /data && chown trainyard /data
COPY requirements.txt constraints.txt ./
# TORCH_INDEX chooses another build of PyTorch. It is asked for by its name, as ./run does: where that index has none of this
# version, pip would else take PyPI's without a word.
RUN build="${TORCH_INDEX%/}" && build="${build##*/}" && \
    case "$build" in cpu|cu[0-9]*) sed -i "s/^torch==.*/&+$build/" constraints.txt ;; esac && \
    pip install -c constraints.txt -r requirements.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
COPY . .
# Bytecode is not written at run time: without this every process of every start would compile the same sources.
RUN python -m compileall -q .
USER trainyard
VOLUME /data
EXPOSE 8000
CMD ["gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application", "--bind", "0.0.0.0:8000"]

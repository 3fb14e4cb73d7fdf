#!/usr/bin/env bash
# Installs the schedulers that the tests marked `cluster` need (Debian or Ubuntu, as root). Starts nothing.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends slurm-wlm munge openmpi-bin

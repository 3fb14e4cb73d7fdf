# Compiles Horovod for the torch of this environment, if it isn't installed: about 4 minutes.
set -e
! python -m pip show --quiet horovod || exit 0
cd "$(dirname "$0")"
CXX=$PWD/cxx20 MAKEFLAGS=-j2 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 \
    python -m pip install --no-cache-dir --no-build-isolation --no-deps --no-binary horovod horovod==0.28.1

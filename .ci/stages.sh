# Shared by .ci/run and .ci/long: named, timed stages. Sourced, not run.

STAGE_NAMES=()
STAGE_SECONDS=()

# stage NAME COMMAND...: runs it, remembers how long it took, stops at the first failure.
stage() {
    local name=$1 began=$SECONDS
    shift
    echo "=== $name: $*"
    if ! "$@"; then
        echo "=== $name FAILED after $((SECONDS - began)) s" >&2
        exit 1
    fi
    STAGE_NAMES+=("$name")
    STAGE_SECONDS+=($((SECONDS - began)))
}

stage_report() {
    local i total=0
    echo "=== minutes per stage"
    for i in "${!STAGE_NAMES[@]}"; do
        total=$((total + STAGE_SECONDS[i]))
        awk -v n="${STAGE_NAMES[i]}" -v s="${STAGE_SECONDS[i]}" 'BEGIN { printf "%-12s %6.1f\n", n, s / 60 }'
    done
    awk -v s="$total" 'BEGIN { printf "%-12s %6.1f\n", "total", s / 60 }'
}

# A binary of the release build that a stage before has made.
target_release() {
    local name=$1
    shift
    "${CARGO_TARGET_DIR:-target}/release/$name" "$@"
}

# The deliberate faults of the simulator are in no binary that is shipped.
no_mutants_shipped() {
    local tree
    tree=$(cargo tree --locked -p kvtide -e normal,features --prefix none) || return 1
    if grep -q 'mutants' <<<"$tree"; then
        echo "the feature \"mutants\" is on in the shipped build" >&2
        return 1
    fi
    echo "no mutants in $(wc -l <<<"$tree") packages and features of the shipped build"
}

# Debian packages that tests need, installed only where a tool is missing.
install_tools() {
    local missing=()
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    command -v c++ >/dev/null || missing+=(g++)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv)
    command -v valgrind >/dev/null || missing+=(valgrind)
    command -v fio >/dev/null || missing+=(fio)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    if [ ${#missing[@]} -gt 0 ]; then
        local sudo=""
        [ "$(id -u)" = 0 ] || sudo=sudo
        $sudo apt-get update -qq
        $sudo apt-get install -y -qq "${missing[@]}"
    fi
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    cargo fetch --locked
}

# A command whose CUDA driver is the CPU stand-in.
on_stand_in() {
    local driver
    driver=$(cargo xtask gpu-sim --env) || return 1
    # A function in the shell's own environment: env(1) would not find it.
    export "${driver?}"
    "$@"
    local status=$?
    unset KVTIDE_LIBCUDA
    return $status
}

# All that the GPU bundle runs, with the Python that `cargo xtask python` made.
bundle_on_stand_in() {
    local target=${CARGO_TARGET_DIR:-target}
    "$target/tools/python/bin/python" "$target/gpu-bundle/run.py" --stand-in "$target/gpu-bundle/sim/libcuda.so.1" --budget 1800
}

# Prints every figure beside its target. A noisy machine fails no build: the figures are for reading.
bench_all() {
    local dir python=${CARGO_TARGET_DIR:-target}/tools/python/bin/python
    dir=$(mktemp -d "${CARGO_TARGET_DIR:-target}/bench.XXXXXX") || return 1
    target_release kvtide bench core && target_release kvtide bench attention &&
        target_release kvtide bench blocks --dir "$dir" --python "$python" &&
        target_release kvtide bench ring && target_release kvtide bench paging &&
        target_release kvtide bench nvme --dir "$dir" --seconds 1 --fio &&
        target_release kvtide bench nvme --dir "$dir" --seconds 1 --fio --mixed &&
        target_release kvtide bench nvme --dir "$dir" --seconds 1 --encrypted &&
        target_release kvtide bench recovery --dir "$dir" &&
        target_release kvtide bench codec
    local status=$?
    rm -rf "$dir"
    return $status
}

# Kills a loaded daemon so many times over and reads back what it had reported stored: plain, and with codec and encryption.
crash_test() {
    local dir
    dir=$(mktemp -d "${CARGO_TARGET_DIR:-target}/crash.XXXXXX") || return 1
    target_release kvtide crash-test --dir "$dir" --rounds "$1" --json &&
        target_release kvtide crash-test --dir "$dir" --rounds "$(($1 / 4))" --codec planes-zstd --encrypted --json
    local status=$?
    rm -rf "$dir"
    return $status
}

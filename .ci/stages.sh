# Shared by .ci/run and .ci/long: named, timed stages, one after the other or beside each other. Sourced, not run.

STAGES=$(mktemp -d)   # of each stage that ended: its figures, its exit status, what it printed
STAGE_NAMES=()        # in the order in which they were run or awaited
LANES=()              # the processes that run stages beside
CORES=$(nproc)

# stage NAME COMMAND...: runs a command, and ends the script if that fails.
stage() {
    local name=$1
    echo "=== $name: ${*:2}"
    if (measured "$@" > >(tee "$STAGES/$name.log") 2>&1); then
        STAGE_NAMES+=("$name")
        echo "=== $name: $(figures "$name")"
    else
        echo "=== $name FAILED: $(figures "$name")" >&2
        exit 1
    fi
}

# beside FUNCTION: runs a function, which names stages by `aside`, beside the stages that follow.
beside() {
    set -m # a process group of its own, so that all of it can be ended
    "$1" </dev/null &
    LANES+=($!)
    set +m
}

# Nothing is left running, however the script ends.
trap 'for lane in "${LANES[@]}"; do kill -- "-$lane" 2>/dev/null || true; done; rm -rf "$STAGES"' EXIT

# aside NAME COMMAND...: a stage of such a function. Its output is kept until `await NAME`; after a failure nothing more is run there.
aside() {
    (measured "$@" >"$STAGES/$1.log" 2>&1) || exit 1
}

# Names the files of the stages that failed.
failed() {
    local status
    for status in "$STAGES"/*.status; do
        [ ! -e "$status" ] || [ "$(cat "$status")" = 0 ] || echo "${status%.status}"
    done
}

# await NAME...: waits for stages beside, prints what they printed, and ends the script if one failed.
await() {
    local name began=$SECONDS
    for name; do
        echo "=== $name: awaited"
        until [ -e "$STAGES/$name.status" ]; do
            if [ -n "$(failed)" ] || ! kill -0 "${LANES[@]}" 2>/dev/null && [ ! -e "$STAGES/$name.status" ]; then
                echo "=== $name FAILED: not run to its end; a stage beside it failed, whose output follows" >&2
                failed | sed 's/$/.log/' | xargs -r cat >&2
                exit 1
            fi
            sleep 1
        done
        cat "$STAGES/$name.log"
        STAGE_NAMES+=("$name")
        if [ "$(cat "$STAGES/$name.status")" != 0 ]; then
            echo "=== $name FAILED: $(figures "$name")" >&2
            exit 1
        fi
        echo "=== $name: $(figures "$name"), beside other stages; waited $((SECONDS - began)) s"
        echo "$((SECONDS - began))" >"$STAGES/$name.waited"
        began=$SECONDS
    done
}

# Runs a command and notes the seconds that it took, those of the processors, and its status. For subshells: it reads their children's times.
measured() {
    local name=$1 began=$SECONDS status=0 times
    shift
    "$@" || status=$?
    read -ra times <"/proc/$BASHPID/stat"
    echo "$((SECONDS - began)) $(((times[15] + times[16]) / $(getconf CLK_TCK)))" >"$STAGES/$name.seconds"
    echo "$status" >"$STAGES/$name.part"
    mv "$STAGES/$name.part" "$STAGES/$name.status" # whole from the start
    return $status
}

figures() {
    local wall cpu
    read -r wall cpu <"$STAGES/$1.seconds"
    awk -v w="$wall" -v c="$cpu" 'BEGIN { printf "%.1f minutes, %.1f of a core", w / 60, c / 60 }'
}

# What to cut next: of each stage the minutes of the gate's own time and those of a core; the slowest test programs.
stage_report() {
    local name wall cpu waited cpus=0
    echo "=== minutes per stage; \"cpu\": of a core, of which there are $CORES; a stage beside others counts by what was waited for it"
    printf '%-12s %6s %6s\n' stage wall cpu
    for name in "${STAGE_NAMES[@]}"; do
        read -r wall cpu <"$STAGES/$name.seconds"
        cpus=$((cpus + cpu))
        waited=
        if [ -e "$STAGES/$name.waited" ]; then
            waited="beside, for $((wall / 60)) minutes"
            wall=$(cat "$STAGES/$name.waited")
        fi
        awk -v n="$name" -v w="$wall" -v c="$cpu" -v b="$waited" 'BEGIN { printf "%-12s %6.1f %6.1f %s\n", n, w / 60, c / 60, b }'
    done
    awk -v w="$SECONDS" -v c="$cpus" -v n="$CORES" 'BEGIN { printf "%-12s %6.1f %6.1f %.0f %% of %d cores\n", "total", w / 60, c / 60, 100 * c / (w + 1) / n, n }'
    if [ -e "$STAGES/tests.log" ]; then
        echo "=== slowest test programs, seconds"
        awk '/^ +(Running|Doc-tests) / { name = $0; sub(/ \(.*/, "", name) }
             /^test result: / { gsub(/s$/, "", $NF); print $NF, name }' "$STAGES/tests.log" | sort -rn | sed -n 1,12p
    fi
}

# A build helper by its binary, which does not wait for the lock on the debug build as `cargo xtask` does.
xtask() {
    "${CARGO_TARGET_DIR:-target}/debug/xtask" "$@"
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

# The daemon and the tool have no code that talks to a remote store: the relay does.
no_network_in_the_daemon() {
    local release="${CARGO_TARGET_DIR:-target}/release" program
    for program in kvtided kvtide kvtide-relay; do
        printf '%s has %s lines about TLS\n' "$program" "$(strings -a "$release/$program" | grep -c rustls)"
    done
    ! grep -q rustls "$release/kvtided" "$release/kvtide" && grep -q rustls "$release/kvtide-relay"
}

# The relay on its own: one of its dependencies turns C functions of crc-fast on, which the library would export.
build_release() {
    cargo build --release --locked -p kvtide-capi -p kvtide
    cargo build --release --locked -p kvtide-relay
}

# The library that is shipped exports the C interface and nothing else.
only_ours_exported() {
    local others
    others=$(nm -D --defined-only "${CARGO_TARGET_DIR:-target}/release/libkvtide.so" | awk '$3 !~ /^kvt_/ { print $3 }') || return 1
    if [ -n "$others" ]; then
        echo "libkvtide.so exports: $others" >&2
        return 1
    fi
    echo "libkvtide.so exports kvt_ functions alone"
}

# The core does what it did when the frozen files were written: in the simulator, the chaos test, its bench and the replay. A change that
# means to change behaviour writes them anew: KVTIDE_FREEZE=1 .ci/frozen
same_behaviour() {
    local now status=0
    now=$(mktemp) || return 1
    target_release kvtide-sim --hashes >"$now" || status=1
    [ "${KVTIDE_FREEZE:-}$status" != 10 ] || cp "$now" tests/sim/frozen.txt
    diff tests/sim/frozen.txt "$now" || status=1
    rm -f "$now"
    [ $status != 0 ] || echo "the simulator's episodes are those of tests/sim/frozen.txt"
    cargo test --workspace --locked --no-fail-fast --test chaos --test core --test replay as_frozen || status=1
    return $status
}

# What builds need.
install_tools() {
    local missing=()
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    command -v c++ >/dev/null || missing+=(g++)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv)
    install_debian "${missing[@]}"
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    cargo fetch --locked
}

# What tests need besides.
install_test_tools() {
    local missing=()
    command -v valgrind >/dev/null || missing+=(valgrind)
    command -v fio >/dev/null || missing+=(fio)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    command -v curl >/dev/null || missing+=(curl)
    command -v chromium >/dev/null || missing+=(chromium)
    install_debian "${missing[@]}"
    missing=()
    command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
    command -v redis-server >/dev/null || missing+=(redis-server)
    install_without_services "${missing[@]}"
}

# Debian packages without the services that they start, and without what they recommend.
install_without_services() {
    local sudo="" policy=/usr/sbin/policy-rc.d own="" status=0
    [ $# -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || sudo=sudo
    if [ ! -e $policy ]; then
        own=$policy
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null && $sudo chmod +x $policy
    fi
    install_debian --no-install-recommends "$@" || status=$?
    [ -z "$own" ] || $sudo rm "$own"
    return $status
}

# What makes and boots the machine of `cargo xtask e2e quickstart`, makes the image and runs containers.
install_machine_tools() {
    local missing=()
    command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
    command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
    command -v buildah >/dev/null || missing+=(buildah)
    command -v podman >/dev/null || missing+=(podman)
    command -v runc >/dev/null || missing+=(runc)
    install_without_services "${missing[@]}"
}

# Debian packages; installs nothing if none is named.
install_debian() {
    local sudo=""
    [ $# -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq && $sudo apt-get install -y -qq "$@"
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

# The GPU bundle's script on the stand-in, with all benches, in a folder of what is built already. What it leaves out is in .ci/long.
bundle_dry() {
    local target=${CARGO_TARGET_DIR:-target} part parts=(probe bench-{copies,attention,step,migrate,nvme,prefix,engines} demo test-memory)
    cargo xtask gpu-bundle --dry || return 1
    for part in "${parts[@]}"; do
        set -- "$@" --only "$part"
    done
    python3 "$target/gpu-bundle-dry/run.py" --stand-in "$target/gpu-bundle-dry/sim/libcuda.so.1" "$@"
}

# All that the GPU bundle runs, with the Python that `cargo xtask python` made.
bundle_on_stand_in() {
    local target=${CARGO_TARGET_DIR:-target}
    "$target/tools/python/bin/python" "$target/gpu-bundle/run.py" --stand-in "$target/gpu-bundle/sim/libcuda.so.1" --budget 1800
}

# Relays killed in the middle of their work, more often than in the gate.
relays_killed() {
    KVTIDE_KILLS=$1 cargo test --locked -p kvtide --test daemon relays_killed
}

# The relay's store against a server of S3.
s3_store() {
    local place
    place=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools/moto") || return 1 # tests run in their package's directory
    [ -x "$place/bin/moto_server" ] || { python3 -m venv "$place" && "$place/bin/pip" install -q 'moto[server]==5.*'; } || return 1
    KVTIDE_MOTO_SERVER=$place/bin/moto_server cargo test -p kvtide-relay --test s3
}

# Benches in a directory of their own, a line of arguments each.
benches() {
    local dir arguments
    dir=$(mktemp -d "${CARGO_TARGET_DIR:-target}/bench.XXXXXX") || return 1
    while read -ra arguments; do
        target_release kvtide bench "${arguments[@]//DIR/$dir}" </dev/null || { rm -rf "$dir"; return 1; }
    done
    rm -rf "$dir"
}

# Prints every figure beside its target. A noisy machine fails no build: the figures are for reading.
bench_all() {
    cargo bench --locked -p kvtide-bench || return 1
    benches <<END
attention
blocks --dir DIR --python ${CARGO_TARGET_DIR:-target}/tools/python/bin/python
spaces
spaces --dir DIR
ring
paging
nvme --dir DIR --seconds 1 --fio
nvme --dir DIR --seconds 1 --fio --mixed
nvme --dir DIR --seconds 1 --encrypted
pressure --dir DIR --host 256MiB --times 6
recovery --dir DIR
codec
END
    cargo run --release --locked -p kvtide-bench-remote # it starts the `kvtide` that is built already
}

# That the benches run: those, or those of their options, that tests/bench.rs does not run, as small as they get.
bench_briefly() {
    benches <<END
blocks --blocks 4096 --mib 4 --python ${CARGO_TARGET_DIR:-target}/tools/python/bin/python
ring
paging
nvme --dir DIR --seconds 0.5 --size 16777216 --fio
recovery --dir DIR --records 20000 --host 256MiB
END
}

# crash_test ROUNDS [FLAGS]: kills a loaded daemon and reads back what it had reported stored: plain, and with codec and encryption.
crash_test() {
    local dir rounds=$1
    shift
    dir=$(mktemp -d "${CARGO_TARGET_DIR:-target}/crash.XXXXXX") || return 1
    target_release kvtide crash-test --dir "$dir" --rounds "$rounds" --json "$@" &&
        target_release kvtide crash-test --dir "$dir" --rounds "$((rounds / 4))" --codec planes-zstd --encrypted --json "$@"
    local status=$?
    rm -rf "$dir"
    return $status
}

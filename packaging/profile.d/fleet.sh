# What you hold on this machine, at a login: CUDA_VISIBLE_DEVICES names your GPUs, unless you have set it, where people
# are held to their reservations; an interactive login says in a line what you hold and until when. Without an agent
# that answers within half a second there is nothing of all this.
if [ -z "${FLEET_JOB_ID-}" ] && command -v fleet >/dev/null 2>&1; then
    case $- in
    *i*) fleet_held=$(fleet held --login </dev/null) || fleet_held= ;;
    *) fleet_held=$(fleet held --login </dev/null 2>/dev/null) || fleet_held= ;;
    esac
    if [ -n "$fleet_held" ] && [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then
        CUDA_VISIBLE_DEVICES=$fleet_held
        export CUDA_VISIBLE_DEVICES
    fi
    unset fleet_held
fi

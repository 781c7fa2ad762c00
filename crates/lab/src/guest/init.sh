#!/bin/sh
# The first process of a guest: sets up the machine, then runs one command after the other until none has come for a
# while, and powers off.
# PORTWAY_GUEST names a directory on the host, which host and guest share:
#   scratch  path of a directory that the guest covers with a tmpfs of its own
#   ready    exists when the machine is set up         failure  one line: the step that failed, its error, what to do
#   command  what to run, one argument a line          taken    exists from the moment that the command was read
#   output   what the command wrote                    status   how it ended
# Each line on standard input, the console, announces a command.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin HOME=/root
shared=$PORTWAY_GUEST
modules=/run/portway-modules

power_off() {
    sync
    echo o > /proc/sysrq-trigger
    # It takes a moment, and process 1 must not end before.
    sleep 60
}

fail() {
    printf '%s' "$*" | tr -s '[:space:]' ' ' > "$shared/failure"
    # /proc may be what could not be mounted. A first process that ends makes the kernel panic, which ends the guest too.
    [ -e /proc/sysrq-trigger ] && power_off
    exit 1
}

# step DESCRIPTION ADVICE COMMAND...: runs a command of the set-up; if it fails, so does the guest, in one line.
step() {
    description=$1 advice=$2
    shift 2
    said=$("$@" 2>&1) || fail "could not $description: $*: ${said:-exit status $?}; $advice"
}

# write VALUE FILE
write() {
    echo "$1" > "$2"
}

# The tree that modprobe -d reads; Debian 12 looks in lib/modules and later releases may in usr/lib/modules.
link_modules() {
    release=$(uname -r)
    [ -f "/usr/lib/uml/modules/$release/modules.dep" ] || { echo "no /usr/lib/uml/modules/$release/modules.dep"; return 1; }
    mkdir -p "$modules/lib/modules" "$modules/usr/lib" &&
        ln -s "/usr/lib/uml/modules/$release" "$modules/lib/modules/$release" &&
        ln -s ../../lib/modules "$modules/usr/lib/modules"
}

# What the kernel and iptables call when they miss a module.
write_modprobe() {
    printf '#!/bin/sh\nexport MODPROBE_OPTIONS="-d %s"\nexec /sbin/modprobe "$@"\n' "$modules" > "$modules/modprobe" &&
        chmod 755 "$modules/modprobe" &&
        echo "$modules/modprobe" > /proc/sys/kernel/modprobe
}

mounts="install the package mount"
# In an ordinary user's guest the host's files belong to nobody, and programs with the setuid bit, mount first of all, would
# run as nobody. A copy has no such bit, and then no other program's counts.
step "copy mount" "$mounts" cp /bin/mount "$shared/mount"
step "have no program run as its owner" "$mounts" "$shared/mount" -n -o remount,nosuid /
step "mount /proc" "$mounts" mount -t proc proc /proc
step "mount /sys" "$mounts" mount -t sysfs sysfs /sys
# What the guest does in these is its own: a change that one of its processes makes in the host's files is not announced
# to the others.
for directory in /run /tmp "$(cat "$shared/scratch")"; do
    # A clone may be below /tmp.
    case $shared/ in "$directory"/*) continue ;; esac
    step "mount a tmpfs" "$mounts" mount -t tmpfs tmpfs "$directory"
done
step "find this kernel's modules" "install the package user-mode-linux again" link_modules
step "have the kernel load modules from there" "install the package kmod" write_modprobe
export MODPROBE_OPTIONS="-d $modules"
# What the kernel does not ask for by itself; and the largest of the rest, while no test is waiting.
for module in ipv6 bridge veth dummy nf_conntrack_netlink ip_vs ip_vs_rr ip_set xt_set \
    iptable_nat iptable_filter iptable_mangle ip6table_nat ip6table_filter ip6table_mangle; do
    step "load a module" "install the packages kmod and user-mode-linux" modprobe "$module"
done
# By its little memory, the kernel would track few connections, closed ones included.
step "raise the limit of tracked connections" "is the module nf_conntrack loaded?" \
    write 262144 /proc/sys/net/netfilter/nf_conntrack_max
step "bring up the loopback interface" "install the package iproute2" ip link set lo up
stty -echo 2> /dev/null
: > "$shared/ready"

# The shell's read waits without end, so the end of a command is followed by a clock. Whether the next command or the power-off
# comes first is decided by who makes the directory for that turn.
idle() {
    sleep 20
    mkdir "/run/turn-$1" 2> /dev/null && echo o > /proc/sysrq-trigger
}

cd /
turn=0
idle $turn &
clock=$!
while IFS= read -r _; do
    # The guest goes off, and the command is for the next one.
    mkdir "/run/turn-$turn" 2> /dev/null || sleep 60
    kill "$clock" 2> /dev/null
    set --
    while IFS= read -r argument; do
        set -- "$@" "$argument"
    done < "$shared/command"
    : > "$shared/taken"
    # Whatever happens, it ends.
    timeout -k 5 1200 "$@" > "$shared/output" 2>&1 < /dev/null
    echo $? > "$shared/status.new"
    sync
    mv "$shared/status.new" "$shared/status"
    turn=$((turn + 1))
    idle $turn &
    clock=$!
done
power_off

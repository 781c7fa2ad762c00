#!/bin/sh
# The first process of a guest: sets up the guest, then runs one command after the other, and powers off when it is idle.
# PORTWAY_GUEST names a directory on the host, which host and guest share:
#   scratch  path of a directory over which the guest mounts a tmpfs
#   ready    exists when the guest is set up           failure  one line: the step that failed, its error, the remedy
#   command  the command, one argument a line          taken    exists from the moment that the command was read
#   output   the output of the command                 status   its exit status
# Each line on standard input, the console, announces a command.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin HOME=/root
shared=$PORTWAY_GUEST
modules=/run/portway-modules

power_off() {
    sync
    echo o > /proc/sysrq-trigger
    # The power-off takes a moment, and process 1 must not end before.
    sleep 60
}

fail() {
    printf '%s' "$*" | tr -s '[:space:]' ' ' > "$shared/failure"
    # If /proc could not be mounted, the first process exits, which makes the kernel panic and so ends the guest too.
    [ -e /proc/sysrq-trigger ] && power_off
    exit 1
}

# step DESCRIPTION ADVICE COMMAND...: runs a command of the set-up; if it fails, writes a failure of one line and ends the guest.
step() {
    description=$1 advice=$2
    shift 2
    output=$("$@" 2>&1) || fail "could not $description: $*: ${output:-exit status $?}; $advice"
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

# The program that the kernel and iptables run to load a module.
write_modprobe() {
    printf '#!/bin/sh\nexport MODPROBE_OPTIONS="-d %s"\nexec /sbin/modprobe "$@"\n' "$modules" > "$modules/modprobe" &&
        chmod 755 "$modules/modprobe" &&
        echo "$modules/modprobe" > /proc/sys/kernel/modprobe
}

mounts="install the package mount"
# In an ordinary user's guest the host's files belong to the user nobody, so programs with the setuid bit, such as mount, would
# run as nobody. A copy of mount does not have the bit; after it has remounted / with nosuid, the bit has no effect.
step "copy mount" "$mounts" cp /bin/mount "$shared/mount"
step "have no program run as its owner" "$mounts" "$shared/mount" -n -o remount,nosuid /
step "mount /proc" "$mounts" mount -t proc proc /proc
step "mount /sys" "$mounts" mount -t sysfs sysfs /sys
# These directories are the guest's own: inotify does not report changes of the host's files to other processes of the guest.
for directory in /run /tmp "$(cat "$shared/scratch")"; do
    # The shared directory stays visible if the project is below /tmp.
    case $shared/ in "$directory"/*) continue ;; esac
    step "mount a tmpfs" "$mounts" mount -t tmpfs tmpfs "$directory"
done
step "find this kernel's modules" "install the package user-mode-linux again" link_modules
step "have the kernel load modules from there" "install the package kmod" write_modprobe
export MODPROBE_OPTIONS="-d $modules"
# Modules that the kernel does not load by itself, and the largest of the others, so that no test waits for them.
for module in ipv6 bridge veth dummy nf_conntrack_netlink ip_vs ip_vs_rr ip_set xt_set \
    iptable_nat iptable_filter iptable_mangle ip6table_nat ip6table_filter ip6table_mangle; do
    step "load a module" "install the packages kmod and user-mode-linux" modprobe "$module"
done
# The default limit depends on the memory, of which the guest has little; closed connections count too.
step "raise the limit of tracked connections" "is the module nf_conntrack loaded?" \
    write 262144 /proc/sys/net/netfilter/nf_conntrack_max
step "bring up the loopback interface" "install the package iproute2" ip link set lo up
stty -echo 2> /dev/null
: > "$shared/ready"

# The shell's read has no time-out, so a background process powers the guest off after 20 idle seconds. It and the main loop
# both try to create a directory for the turn; the one that succeeds decides between power-off and the next command.
idle() {
    sleep 20
    mkdir "/run/turn-$1" 2> /dev/null && echo o > /proc/sysrq-trigger
}

cd /
turn=0
idle $turn &
clock=$!
while IFS= read -r _; do
    # The guest powers off, and the command is left to the next one.
    mkdir "/run/turn-$turn" 2> /dev/null || sleep 60
    kill "$clock" 2> /dev/null
    set --
    while IFS= read -r argument; do
        set -- "$@" "$argument"
    done < "$shared/command"
    : > "$shared/taken"
    # No command runs longer than 20 minutes.
    timeout -k 5 1200 "$@" > "$shared/output" 2>&1 < /dev/null
    echo $? > "$shared/status.new"
    sync
    mv "$shared/status.new" "$shared/status"
    turn=$((turn + 1))
    idle $turn &
    clock=$!
done
power_off

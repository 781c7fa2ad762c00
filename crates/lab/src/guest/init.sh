#!/bin/sh
# The first process of a guest: makes it a machine, runs one command, brings out its end, and powers off.
# PORTWAY_GUEST names a directory of the host's, which it shares with the guest:
#   command  what to run, one argument a line     scratch  a directory that is to be the guest's own
#   output   what it wrote                        status   how it ended
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
# What the guest does in these is its own: a change that one of its processes makes in the host's files is not
# announced to the others.
for directory in /run /tmp $(cat "$PORTWAY_GUEST/scratch"); do
    mount -t tmpfs tmpfs "$directory"
done
release=$(uname -r)
mount -t tmpfs tmpfs /lib/modules
mkdir "/lib/modules/$release"
mount --bind "/usr/lib/uml/modules/$release" "/lib/modules/$release"
# What the kernel does not ask for by itself; and the largest of the rest, while nobody is waiting.
modprobe -a ipv6 bridge veth dummy nf_conntrack_netlink ip_vs ip_vs_rr ip_set xt_set \
    iptable_nat iptable_filter iptable_mangle ip6table_nat ip6table_filter ip6table_mangle
# By its little memory, the kernel would track few connections, closed ones included.
echo 262144 > /proc/sys/net/netfilter/nf_conntrack_max
ip link set lo up

# Whatever happens, this ends.
(sleep 1200; echo o > /proc/sysrq-trigger) &

set --
while IFS= read -r argument; do
    set -- "$@" "$argument"
done < "$PORTWAY_GUEST/command"
cd / && "$@" > "$PORTWAY_GUEST/output" 2>&1
echo $? > "$PORTWAY_GUEST/status"
sync
echo o > /proc/sysrq-trigger
# It takes a moment, and process 1 must not end before.
sleep 60

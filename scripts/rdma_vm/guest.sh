# The guest's half of scripts/rdma_vm.sh: makes the network and the RDMA devices, runs the command, ends the machine.
#
# Two cables, each between two devices: rxe0 = rxe1 and rxe2 = rxe3 (the second rail). Device N is on interface rdN with
# address 10.77.N.1; its GID 1 is that address (RoCE v2), its MTU 4096. `tc qdisc add dev rd0 root netem loss 1%` makes
# the cable bad in one direction.

# The kernel delivers what goes to one of its own addresses by itself, without any cable. So the table of local addresses
# is asked late, and before it come the ways from one end of a cable to the other: for what goes to the other end (an
# unbound socket then has this end as its sender), and for who asks with the interface given (rdma_cm, RoCE). Only what
# an end sends to itself stays local.
connect_ends() {
  local from=$1 to=$2
  ip rule add pref 50 from "10.77.$from.1" to "10.77.$from.1" lookup local
  ip rule add pref 60 iif lo to "10.77.$to.1" lookup "10$from"
  ip rule add pref 70 oif "rd$from" to "10.77.$to.1" lookup "10$from"
  ip route add "10.77.$to.1" dev "rd$from" src "10.77.$from.1" table "10$from"
}

make_end() {
  local number=$1 setting
  ip addr add "10.77.$number.1/32" dev "rd$number"
  ip link set "rd$number" mtu 4500 up
  # Packets with one of our own addresses as the sender are welcome; only the interface that has an address answers ARP.
  for setting in accept_local=1 rp_filter=0 arp_ignore=1; do
    echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/rd$number/${setting%=*}"
  done
}

make_network() {
  local number
  hostname rdma-vm
  ip link set lo up
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for number in 0 2; do
    ip link add "rd$number" type veth peer name "rd$((number + 1))"
    make_end "$number"
    make_end $((number + 1))
    connect_ends "$number" $((number + 1))
    connect_ends $((number + 1)) "$number"
  done
  ip rule add pref 100 lookup local
  ip rule del pref 0
  for number in 0 1 2 3; do
    rdma link add "rxe$number" type rxe netdev "rd$number"
  done
}

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb RDMA_VM=1
ulimit -l unlimited
make_network
(. /run/exchange/command)
echo $? >/run/exchange/status
sync
echo o >/proc/sysrq-trigger
while :; do :; done # the end comes soon; no program could be read from the host's files any more

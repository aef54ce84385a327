#!/bin/bash
# A real single-node Kubernetes 1.20 (etcd, apiserver, controller-manager, scheduler, kubelet, kube-proxy, containerd,
# runc, docker-registry), for tests, without systemd or Docker. Needs root and Debian's packages; see README.md.
# The whole cluster lives in ONE private network+mount+pid namespace: nothing of it is reachable from outside,
# nothing of the host is changed, and killing one pid removes it all. Clusters of different KUBE_HOME do not meet.
#
#   cluster.sh run CMD ...     bring a cluster up, run CMD inside its network, take it down; with KUBECONFIG given: just run CMD
#   cluster.sh up              ~15 s; then the node is Ready and the images base:1 and pause:3.2 are in the registry
#   cluster.sh exec CMD ...    run CMD inside the cluster's network, with KUBECONFIG and REGISTRY=127.0.0.1:5000 set
#   cluster.sh kube            where the server programs are
#   cluster.sh status | down
set -eu
HERE=$(dirname "$(realpath "$0")"); ME=$HERE/$(basename "$0")
REPO=$(realpath "$HERE/../..")
KUBE_SHA256=147b776b3871ff773d22e10231e096b0f2174954ed43b6018b7d8c6e37b4786c
K=$(realpath -m "${KUBE_HOME:-/tmp/ramet-kube-$(printf %s "$REPO" | cksum | cut -d' ' -f1)}"); CACHE=${KUBE_CACHE:-$REPO/.cache/kube}
NODE_IP=10.240.0.1; POD_CIDR=10.244.0.0/24; SVC_CIDR=10.96.0.0/16; REG=127.0.0.1:5000; ETCD=http://127.0.0.1:12379
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"
NEEDED="etcd containerd runc docker-registry skopeo umoci iptables conntrack ip jq curl openssl xz gcc kubectl unshare nsenter setpriv"
LEASH=

at() { # KUBE_HOME: where everything of this cluster is
  K=$1; RUN=$K/run; BIN=$K/bin; PKI=$RUN/pki; LOG=$RUN/log
  GROUP=ramet-kube-$(printf %s "$K" | cksum | cut -d' ' -f1)   # of its pods; without its own, kubelets end each other's
  export PATH=$BIN:/usr/lib/cni:$FIRST_PATH:/usr/sbin:/sbin
}
FIRST_PATH=$PATH; at "$K"

# --- the server programs ------------------------------------------------------------------------------------------------

in_folder() { for f in "$1/kube" "$1/kube-multi.xz"; do [ -f "$f" ] && echo "$f" && return; done; return 1; }

kube() { # prints the file that has them
  case ${RAMET_KUBE:-} in
    "") ;;
    build) in_folder "$CACHE/built" || { "$HERE/build-kube.sh" "$CACHE/built" >&2 && in_folder "$CACHE/built"; }; return;;
    *) if [ -f "$RAMET_KUBE" ]; then echo "$RAMET_KUBE"; elif ! in_folder "$RAMET_KUBE"; then
         echo "RAMET_KUBE is $RAMET_KUBE: expected kube-multi.xz, a folder that has it, or the word build" >&2; return 1; fi; return;;
  esac
  local repository=$REPO found
  for _ in 1 2 3 4; do   # beside this clone, or beside the one that it was cloned from
    found=$repository/../shared/k8s/kube-multi.xz
    if [ -f "$found" ]; then
      if [ "$(sha256sum < "$found" | cut -d' ' -f1)" = $KUBE_SHA256 ]; then realpath "$found"; return; fi
      echo "not the expected file, by its checksum: $found" >&2
    fi
    repository=$(git -C "$repository" remote get-url origin 2>/dev/null) || break
    repository=${repository#file://}; [ -d "$repository" ] || break
  done
  echo "no Kubernetes server programs: set RAMET_KUBE to kube-multi.xz, or to build (tests/cluster/README.md)" >&2; return 1
}

binaries() {
  local from; from=$(kube); mkdir -p "$BIN" "$CACHE"
  if [ "${from%.xz}" != "$from" ]; then   # unpacked once
    local kept; kept=$CACHE/kube-$(sha256sum < "$from" | cut -c1-12)
    [ -x "$kept" ] || { xz -dc "$from" > "$kept.$$"; chmod +x "$kept.$$"; mv "$kept.$$" "$kept"; }
    from=$kept
  fi
  for n in $PROGRAMS; do ln -sfn "$(realpath "$from")" "$BIN/$n"; done
}

images() { # one at a time: clusters of one checkout share them
  mkdir -p "$CACHE"; flock "$CACHE" "$HERE/images.sh" "$CACHE/images" > "$K/images.log" 2>&1 || { tail -5 "$K/images.log" >&2; return 1; }
}

certs() {
  mkdir -p "$PKI"; cd "$PKI"
  k() { openssl ecparam -genkey -name prime256v1 -noout -out "$1.key" 2>/dev/null; }
  k ca; openssl req -x509 -new -key ca.key -subj /CN=ca -days 3650 -out ca.crt
  leaf() { # name CN O SAN
    k "$1"; openssl req -new -key "$1.key" -subj "/O=$3/CN=$2" -out "$1.csr"
    printf 'keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage=clientAuth,serverAuth\nbasicConstraints=CA:FALSE\n%s\n' "${4:+subjectAltName=$4}" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile "$1.ext" -out "$1.crt" 2>/dev/null; }
  leaf apiserver kube-apiserver k8s "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:$NODE_IP,IP:10.96.0.1"
  leaf apiserver-kubelet apiserver-kubelet system:masters ""
  leaf admin admin system:masters ""
  leaf sched system:kube-scheduler k8s ""
  leaf proxy system:kube-proxy k8s ""
  leaf kubelet system:node:node1 system:nodes "DNS:node1,IP:$NODE_IP"
  leaf front front-proxy-client k8s ""
  k sa; openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
  for u in admin sched proxy kubelet; do cat > $u.conf <<E
apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {certificate-authority-data: $(base64 -w0 ca.crt), server: "https://$NODE_IP:6443"}}]
users: [{name: $u, user: {client-certificate-data: $(base64 -w0 $u.crt), client-key-data: $(base64 -w0 $u.key)}}]
contexts: [{name: k, context: {cluster: k, user: $u}}]
current-context: k
E
  done; cp admin.conf "$RUN/kubeconfig"; cd - >/dev/null
}

confs() {
  mkdir -p "$RUN"/{cni,containerd,kubelet,registry}
  cat > "$RUN/cni/10-bridge.conflist" <<E
{"cniVersion":"0.4.0","name":"k8s","plugins":[
 {"type":"bridge","bridge":"cnik8s","isGateway":true,"hairpinMode":true,"ipMasq":false,
  "ipam":{"type":"host-local","dataDir":"$RUN/ipam","ranges":[[{"subnet":"$POD_CIDR"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
E
  cat > "$RUN/containerd.toml" <<E
version = 2
root = "$RUN/containerd/root"
state = "$RUN/containerd/state"
[grpc]
  address = "$RUN/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$REG/pause:3.2"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$RUN/cni"
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."$REG"]
    endpoint = ["http://$REG"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "$RUN/containerd/opt"
E
  printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}, delete: {enabled: true}}\nhttp: {addr: "%s"}\nlog: {level: warn}\n' "$RUN/registry" $REG > "$RUN/registry.yml"
  echo "nameserver 10.96.0.10" > "$RUN/resolv.conf"
  cat > "$RUN/kubelet.yaml" <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $NODE_IP
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$GROUP
failSwapOn: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $RUN/resolv.conf
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
evictionHard: {memory.available: "200Mi", nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
serializeImagePulls: false
registryPullQPS: 0
kubeAPIQPS: 100
kubeAPIBurst: 200
eventRecordQPS: 0
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
E
}

inside() { # pid 1 of the cluster's own network, mount and pid namespaces
  mount --make-rprivate /
  ip link set lo up
  ip link add k8snode type bridge; ip addr add $NODE_IP/32 dev k8snode; ip link set k8snode up
  ip route add default dev k8snode 2>/dev/null || true        # the kubelet wants a default route; nothing answers there
  sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true
  for p in /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /run/containerd; do   # leave nothing on the host
    mkdir -p "$p" "$RUN/host$p"; mount --bind "$RUN/host$p" "$p"; done
  # The kubelet insists on these sysctls: show it the values it wants instead of changing the machine's.
  for s in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    f=$RUN/fake-$(echo "${s%=*}" | tr / .); echo "${s#*=}" > "$f"; mount --bind "$f" "/proc/sys/${s%=*}"; done
  umount /sys/fs/cgroup/unified 2>/dev/null || true           # some runtimes refuse a hybrid cgroup layout
  groups mkdir -p
  d() { n=$1; shift; setsid "$@" > "$LOG/$n.log" 2>&1 < /dev/null & echo "$! $n" >> "$RUN/pids"; }
  : > "$RUN/pids"
  d etcd etcd --data-dir "$RUN/etcd" --listen-client-urls $ETCD --advertise-client-urls $ETCD --listen-peer-urls http://127.0.0.1:12380 --unsafe-no-fsync
  d registry docker-registry serve "$RUN/registry.yml"
  d containerd containerd -c "$RUN/containerd.toml"
  d apiserver kube-apiserver --etcd-servers=$ETCD --bind-address=$NODE_IP --advertise-address=$NODE_IP --secure-port=6443 \
    --service-cluster-ip-range=$SVC_CIDR --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-client-certificate="$PKI/apiserver-kubelet.crt" --kubelet-client-key="$PKI/apiserver-kubelet.key" \
    --requestheader-client-ca-file="$PKI/ca.crt" --requestheader-allowed-names=front-proxy-client --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$PKI/front.crt" --proxy-client-key-file="$PKI/front.key" \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" --service-account-issuer=https://kubernetes.default.svc --api-audiences=https://kubernetes.default.svc \
    --allow-privileged=true
  export AWS_EC2_METADATA_DISABLED=true AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null HOME=$RUN
  until [ -S "$RUN/containerd.sock" ]; do sleep 0.05; done    # without it the kubelet ends, and nothing starts it again
  d kubelet kubelet --containerd="unix://$RUN/containerd.sock" --config="$RUN/kubelet.yaml" --kubeconfig="$PKI/kubelet.conf" --hostname-override=node1 --node-ip=$NODE_IP \
    --container-runtime=remote --container-runtime-endpoint="unix://$RUN/containerd.sock" --root-dir="$RUN/kubelet" --cert-dir="$PKI/kubelet-dir"
  for _ in $(seq 300); do curl -sf --cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key" https://$NODE_IP:6443/readyz >/dev/null && break; sleep 0.2; done
  d kcm kube-controller-manager --kubeconfig="$PKI/admin.conf" --leader-elect=false --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
    --cluster-cidr=$POD_CIDR --controllers='*,-nodeipam' --concurrent-gc-syncs=5 --bind-address=127.0.0.1 --port=0
  d sched kube-scheduler --kubeconfig="$PKI/sched.conf" --leader-elect=false --bind-address=127.0.0.1 --port=0
  d proxy kube-proxy --kubeconfig="$PKI/proxy.conf" --hostname-override=node1 --cluster-cidr=$POD_CIDR --proxy-mode=iptables --bind-address=$NODE_IP \
    --healthz-bind-address=127.0.0.1:10256 --metrics-bind-address=127.0.0.1:10249 --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
  touch "$RUN/started"
  wait
}

groups() { # groups CMD ...: CMD with the cluster's folder in each hierarchy of control groups
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then "$@" "/sys/fs/cgroup/$GROUP"; return; fi
  local failed=0
  for h in /sys/fs/cgroup/*/; do [ "$h" = /sys/fs/cgroup/unified/ ] || [ -L "${h%/}" ] || "$@" "$h$GROUP" || failed=1; done
  return $failed
}

# --- up and down --------------------------------------------------------------------------------------------------------

born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }   # start time: a number that comes again is told apart
lives() { # lives FILE: whether the process is there that FILE names
  local pid start; read -r pid start 2>/dev/null < "$1" && [ -n "$start" ] && [ "$(born "$pid")" = "$start" ]; }
pid_1() { read -r pid _ < "$RUN/ns.pid"; echo "$pid"; }

enter() { nsenter -t "$(pid_1)" -n -- env KUBECONFIG="$RUN/kubeconfig" REGISTRY=$REG RAMET_CLUSTER="${OURS:-}" "$@"; }

up() {
  if lives "$RUN/ns.pid"; then echo "cluster is already up"; return; fi
  possible; down; mkdir -p "$K"
  binaries; images
  mkdir -p "$RUN" "$LOG"; certs; confs
  # shellcheck disable=SC2086
  KUBE_HOME=$K $LEASH setsid unshare -n -m -p -f --kill-child --mount-proc "$ME" _inside > "$LOG/inside.log" 2>&1 < /dev/null &
  echo "$! $(born $!)" > "$RUN/ns.pid"; disown
  alive() { lives "$RUN/ns.pid" || { echo "the cluster ended while it was started:" >&2; tail -5 "$LOG"/*.log >&2; exit 1; }; }
  until [ "$(readlink "/proc/$(pid_1)/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; alive; done
  until enter curl -sf http://$REG/v2/ >/dev/null; do sleep 0.1; alive; done
  for i in "$CACHE"/images/*-oci; do n=$(basename "$i" -oci); tag=$(jq -r '.manifests[0].annotations["org.opencontainers.image.ref.name"]' "$i/index.json")
    enter skopeo copy -q --insecure-policy --dest-tls-verify=false "oci:$i:$tag" "docker://$REG/$n:$tag"; done
  until [ -e "$RUN/started" ]; do sleep 0.1; alive; done
  until enter kubectl get node node1 2>/dev/null | grep -qw Ready; do sleep 0.2; alive; done
  until enter kubectl -n default get sa default >/dev/null 2>&1; do sleep 0.1; alive; done
  echo "ready: KUBE_HOME=$K $ME exec kubectl get nodes"
}

down() { # only what is ours; the packed images and programs in .cache stay
  if lives "$RUN/ns.pid"; then
    local pid inner; pid=$(pid_1); inner=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null || true)
    kill -9 "$pid" 2>/dev/null || true
    for one in $pid $inner; do until gone "$one"; do sleep 0.05; done; done
  fi
  for _ in $(seq 25); do groups empty 2>/dev/null && break; sleep 0.2; done
  rm -rf "$RUN"
}
gone() { [ ! -e "/proc/$1" ] || grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }
empty() { [ ! -d "$1" ] || find "$1" -depth -type d -exec rmdir {} + ; }

possible() { # fails, and says why, where no cluster can be
  local lacking=""
  for each in $NEEDED; do command -v "$each" >/dev/null || lacking="$lacking $each"; done
  [ "$(id -u)" = 0 ] || { echo "a cluster of our own needs root" >&2; return 1; }
  [ -z "$lacking" ] || { echo "a cluster of our own needs$lacking" >&2; return 1; }
  kube >/dev/null
}

run() {
  if [ -n "${KUBECONFIG:-}" ]; then
    [ -n "${REGISTRY:-}" ] || { echo "KUBECONFIG is set: set REGISTRY too, the registry that its nodes pull base:1 from" >&2; exit 2; }
    "$@"; exit
  fi
  local why
  if ! why=$(possible 2>&1); then
    echo "== NOT RUN, for want of a cluster: $why" >&2; [ "${CI:-}" != true ]; exit
  fi
  sweep; at "$(mktemp -d /tmp/ramet-kube.XXXXXX)"; echo "$$ $(born $$)" > "$K/owner"
  LEASH="setpriv --pdeathsig KILL"                    # should this script be killed, the cluster ends with it
  trap 'down; rm -rf "$K"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM HUP
  up; OURS=own enter "$@"                             # nobody else is at work there
}

sweep() { # what a `run` that was killed by force left: an empty group, and a folder
  for each in /tmp/ramet-kube.*/; do
    [ -O "$each" ] && [ -e "${each}owner" ] && ! lives "${each}owner" || continue
    (at "${each%/}"; down; rm -rf "$K")
  done
}

case ${1:-} in
  kube|up|down) "$1";; _inside) inside;; exec) shift; enter "$@";; run) shift; run "$@";;
  status) cat "$RUN/pids"; enter kubectl get nodes,pods -A -o wide;;
  *) sed -n 7,12p "$0"; exit 2;;
esac

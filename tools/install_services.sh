#!/usr/bin/env bash
# What the tests need beside Python: Slurm with munge, PostgreSQL, systemd-analyze, sqlite3. Installs Debian's packages as root; elsewhere it names
# what is missing and stops. Does nothing where all is there.
set -eu
missing=()
for program in slurmctld slurmd sbatch; do command -v "$program" >/dev/null || { missing+=(slurm-wlm); break; }; done
for program in munge munged; do command -v "$program" >/dev/null || { missing+=(munge); break; }; done
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
command -v sqlite3 >/dev/null || missing+=(sqlite3)
command -v systemd-analyze >/dev/null || missing+=(systemd)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "the tests need ${missing[*]} (Debian's package names): install them and run this again" >&2
    exit 1
fi
echo "installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

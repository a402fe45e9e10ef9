# shellcheck shell=sh
#
# Runs inside a root of a Debian suite that has Slurm's packages and patchelf. It copies Slurm's programs, its plugins and
# all libraries that they need, with the C library, to /slurm-prefix, and changes them to work at the path in $1 of a
# machine with other libraries.

umask 022 # users read it
prefix=$1
out=/slurm-prefix
mkdir -p "$out/bin" "$out/lib"
for program in salloc sattach sbatch sbcast scancel scontrol sdiag sinfo sprio squeue srun sstat strigger \
  slurmctld slurmd slurmstepd; do
  cp -L "$(command -v "$program")" "$out/bin/$program" # a link of the alternatives system
done
for directory in /usr/lib/*/slurm-wlm; do
  cp -rL "$directory" "$out/plugins"
done

loader=$(patchelf --print-interpreter "$out/bin/srun")
cp -L "$loader" "$out/lib/"
# libgcc_s is loaded only when a thread is cancelled. A plugin whose libraries are not installed is one that no lab uses.
for library in $(ldd "$out"/bin/* "$out"/plugins/*.so 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u) \
  /usr/lib/*/libgcc_s.so.1; do
  case $library in "$out"/*) ;; */slurm-wlm/*) ;; *) cp -L "$library" "$out/lib/" ;; esac
done

patchelf --force-rpath --set-rpath "$prefix/lib:$prefix/plugins" "$out"/plugins/*.so "$out"/bin/*
for program in "$out"/bin/*; do
  patchelf --set-interpreter "$prefix/lib/${loader##*/}" "$program"
done

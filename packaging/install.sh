#!/bin/sh
# Installs tenure, or removes it.
#
#   ./install.sh                            below /usr/local
#   PREFIX=$HOME/.local ./install.sh        for one user
#   ./install.sh uninstall                  removes it; PREFIX as at the installation
#
# PREFIX   the folder in which programs use it (/usr/local)
# LIBDIR   the folder of the C library (PREFIX/lib)
# DESTDIR  a directory that stands for / during the installation, for packages
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
DESTDIR=${DESTDIR:-}
case $PREFIX:$LIBDIR in
/*:/*) ;;
*) echo "install.sh: PREFIX and LIBDIR must begin with /" >&2 && exit 2 ;;
esac
cd "$here/tree"

# The destination of a file of the tree.
place() {
    case $1 in
    lib/tenure/*) echo "$DESTDIR$PREFIX/$1" ;;
    lib/*) echo "$DESTDIR$LIBDIR/${1#lib/}" ;;
    *) echo "$DESTDIR$PREFIX/$1" ;;
    esac
}

# No name in the tree has a space.
files=$(find . ! -type d | sed 's,^\./,,' | LC_ALL=C sort)
case ${1:-install} in
install)
    for file in $files; do
        to=$(place "$file")
        mkdir -p "${to%/*}"
        # Replaces a file that is in use, and does not write to it.
        rm -f "$to"
        case $file in
        *.pc) sed "s,@PREFIX@,$PREFIX,; s,@LIBDIR@,$LIBDIR," "$file" >"$to" ;;
        # Not with the owner of the tree: that may be another user than the one that installs.
        *) cp -P "$file" "$to" ;;
        esac
        case $file in
        bin/*) chmod 755 "$to" ;;
        *) [ -L "$to" ] || chmod 644 "$to" ;;
        esac
    done
    echo "installed below $DESTDIR$PREFIX"
    ;;
uninstall)
    for file in $files; do
        rm -f "$(place "$file")"
    done
    for directory in lib/tenure share/doc/tenure; do
        rmdir "$DESTDIR$PREFIX/$directory" 2>/dev/null || true
    done
    echo "removed from $DESTDIR$PREFIX"
    ;;
*)
    echo "install.sh: unknown: $1 (install or uninstall)" >&2
    exit 2
    ;;
esac
# The loader's list of libraries. A user without rights names LIBDIR in LD_LIBRARY_PATH, or links with -rpath.
if [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
    ldconfig
fi

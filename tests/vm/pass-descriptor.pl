#!/usr/bin/perl
# Passes the descriptor of a file from one user to another over a Unix socket, and prints what each of them gets of it.
# Run on a guest by tests/vm/hostile.rs; Debian's perl-base, which every guest has, is all it takes.
#
#   perl pass-descriptor.pl give SOCKET FILE    gives it to the first who comes
#   perl pass-descriptor.pl take SOCKET
#
# No driver is behind a guest's GPUs, so none can be held open for reading. The descriptor stands for the node alone (O_PATH):
# it reads nothing, and who has it can open the node again by /proc/self/fd, without any path to it.
use strict;
use warnings;
use IO::Socket::UNIX;

use constant {
    SYS_SENDMSG => 46, # x86-64, as every guest
    SYS_RECVMSG => 47,
    O_PATH      => 010000000,
    SOL_SOCKET  => 1,
    SCM_RIGHTS  => 1,
    SECONDS_MAX => 120, # for all of it: the other may never come
};

# struct cmsghdr with one descriptor, struct iovec with one byte, struct msghdr.
my $rights = pack('QllLx4', 20, SOL_SOCKET, SCM_RIGHTS, 0);
my $byte   = '.';
my $bytes  = pack('PQ', $byte, 1);

sub message { return pack('QLx4PQPQlx4', 0, 0, $bytes, 1, $rights, length $rights, 0) }

sub opened_anew {
    my ($descriptor) = @_;
    print 'opened again: ', (open(my $file, '<', "/proc/self/fd/$descriptor") ? 'yes' : $!), "\n";
    return;
}

my ($what, $path, $file) = @ARGV;
$| = 1;
alarm SECONDS_MAX;

if ($what eq 'give') {
    sysopen(my $node, $file, O_PATH) or die "$file: $!\n";
    opened_anew(fileno $node);
    my $door = IO::Socket::UNIX->new(Local => $path, Listen => 1) or die "$path: $!\n";
    chmod 0666, $path or die "$path: $!\n";
    my $other = $door->accept or die "accept: $!\n";
    unlink $path;
    substr($rights, 16, 4) = pack('l', fileno $node);
    syscall(SYS_SENDMSG, fileno $other, message(), 0) == 1 or die "sendmsg: $!\n";
} else {
    my $other = IO::Socket::UNIX->new(Peer => $path) or die "$path: $!\n";
    # What is read is written into these two.
    syscall(SYS_RECVMSG, fileno $other, message(), 0) == 1 or die "recvmsg: $!\n";
    my ($length, $level, $type, $descriptor) = unpack('QllL', $rights);
    die "no descriptor came\n" if $level != SOL_SOCKET || $type != SCM_RIGHTS || $length != 20;
    print 'what it is: ', readlink("/proc/self/fd/$descriptor") // $!, "\n";
    opened_anew($descriptor);
}

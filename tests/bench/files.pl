# Does one kind of operation on many files and prints the seconds that it took.
# Usage: files.pl create|stat|rename|unlink DIRECTORY COUNT
# Perl calls the C library, as programs do; its own share is a fraction of a microsecond a call.
use strict;
use Fcntl;
use Time::HiRes qw(time);

my ($what, $dir, $count) = @ARGV;
chdir($dir) or die "$dir: $!";
my %operation = (
	create => sub { sysopen(my $f, $_[0], O_CREAT | O_EXCL | O_WRONLY, 0644) or die "$_[0]: $!"; close $f },
	stat   => sub { lstat($_[0]) or die "$_[0]: $!" },
	rename => sub { rename($_[0], "$_[0].new") or die "$_[0]: $!" },
	unlink => sub { unlink($_[0]) or die "$_[0]: $!" },
);
my $do = $operation{$what} or die "no operation $what";
my @names = map { sprintf "file-%07d", $_ } 1 .. $count;
my $begin = time;
$do->($_) for @names;
printf "%.6f\n", time - $begin;

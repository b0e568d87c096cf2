//! File systems of a fixed size, mounted for one run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A mounted file system; unmounted when it is dropped.
#[derive(Debug)]
pub struct Mounted {
    folder: PathBuf,
}

/// Creates a directory below the system's temporary one.
fn new_folder() -> Result<PathBuf, String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::SeqCst);
    let folder = std::env::temp_dir().join(format!("topics-realfs-{}-{n}", std::process::id()));
    fs::create_dir_all(folder.join("disk")).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Runs a program; returns its output, or its error output if it fails.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program).args(args).stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("{program}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(format!("{program} {}: {}", args.join(" "), text.trim()))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Mounted {
    /// A tmpfs of this size.
    pub fn tmpfs(bytes: u64) -> Result<Self, String> {
        let folder = new_folder()?;
        let size = format!("size={bytes}");
        let mounted = Self { folder };
        let args = ["-t", "tmpfs", "-o", &size, "tmpfs", &text(&mounted.disk())];
        run("mount", &args).map(|_| mounted)
    }

    /// A new ext4 of this size, in an image behind a loop device.
    pub fn ext4(bytes: u64) -> Result<Self, String> {
        let mounted = Self { folder: new_folder()? };
        let image = mounted.image();
        let made = File::create(&image).and_then(|f| f.set_len(bytes));
        made.map_err(|e| format!("{}: {e}", image.display()))?;
        run("mkfs.ext4", &["-q", "-F", &text(&image)])?;
        mounted.mount_image()?;
        Ok(mounted)
    }

    fn mount_image(&self) -> Result<(), String> {
        run("mount", &["-o", "loop", &text(&self.image()), &text(&self.disk())]).map(drop)
    }

    /// The mount point.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// Makes the file system lose everything that is not on its device: it writes nothing more, not
    /// even its journal. The request is `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`;
    /// Python sends it, because calling `ioctl` from here is `unsafe`. Returns the monotonic clock
    /// before the request, ns: a sync in flight at the shutdown may return success, which a real
    /// power cut would prevent.
    pub fn shut_down(&self) -> Result<u64, String> {
        const PROGRAM: &str = "import fcntl, os, struct, sys, time\n\
            fd = os.open(sys.argv[1], os.O_RDONLY)\n\
            print(time.monotonic_ns())\n\
            fcntl.ioctl(fd, 0x8004587D, struct.pack('I', 2))";
        let printed = run("python3", &["-c", PROGRAM, &text(&self.disk())])?;
        printed.parse().map_err(|_| format!("the shutdown printed {printed:?}, no time"))
    }

    /// Unmounts and mounts again, as after a power cut.
    pub fn mount_again(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(240);
        // A killed process may still be closing its files.
        while let Err(e) = run("umount", &[&text(&self.disk())]) {
            if Instant::now() > deadline {
                return Err(e);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.mount_image()
    }

    /// Uses all free space until the returned file is removed.
    pub fn fill(&self) -> Result<PathBuf, String> {
        let path = self.disk().join("filler");
        let mut file = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        for size in [1 << 20, 4096, 1] {
            while std::io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
        }
        Ok(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Also if it was never mounted, or a hanging process still uses it.
        let _ = run("umount", &["--lazy", &text(&self.disk())]);
        let _ = fs::remove_dir(self.disk());
        let _ = fs::remove_file(self.image());
        let _ = fs::remove_dir(&self.folder);
    }
}

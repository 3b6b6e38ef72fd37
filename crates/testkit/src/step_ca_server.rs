//! A private step-ca server for one test, with its own authorities.

use std::path::PathBuf;

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::{Launch, PATIENCE, Program, TempDir, free_port, program, skip};

/// The variable with the path of the program built from `xtask/src/step_ca/main.go`. `cargo xtask test` sets it.
pub const STEP_CA_VARIABLE: &str = "GPUAAS_STEP_CA_PROGRAM";
/// The X5C provisioner of [`StepCaServer::enrollment`].
pub const STEP_CA_PROVISIONER: &str = "gpuaas";
/// Another provisioner with its own authority: [`StepCaServer::other_enrollment`].
pub const STEP_CA_OTHER_PROVISIONER: &str = "somebody-else";

/// Paths of a certificate and its key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, in PEM.
    pub certificate: PathBuf,
    /// The private key, in PEM with file mode 0600.
    pub key: PathBuf,
}

/// A step-ca server with a root, an intermediate and two X5C provisioners. Killed on drop.
#[derive(Debug)]
pub struct StepCaServer {
    launch: Launch,
    port: u16,
    enrollment: CertificateFiles,
    other_enrollment: CertificateFiles,
    root_pem: String,
    program: Program,
    // Declared after the program, so that it is dropped after it.
    folder: TempDir,
}

/// A certificate authority in memory.
struct Authority {
    pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn make(name: &str, above: Option<&Authority>) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(u8::from(above.is_none())));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = match above {
            None => params.self_signed(&key),
            Some(above) => params.signed_by(&key, &above.issuer),
        };
        let pem = certificate.expect("a CA certificate").pem();
        let key_pem = key.serialize_pem();
        Self { issuer: Issuer::from_ca_cert_pem(&pem, key).expect("an issuer"), pem, key_pem }
    }

    /// Creates a leaf certificate that may sign X5C tokens.
    fn enrollment(&self, folder: &TempDir, name: &str) -> CertificateFiles {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = CertificateFiles { certificate: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) };
        write_private(&files.certificate, &certificate.pem());
        write_private(&files.key, &key.serialize_pem());
        files
    }
}

impl StepCaServer {
    /// Starts a server whose certificates are valid for `life`, such as `24h`. Returns `None` and prints a line if step-ca is not built.
    pub fn start(life: &str) -> Option<Self> {
        let Some(path) = program::find(STEP_CA_VARIABLE, "step-ca", "step-ca") else {
            skip("a test with step-ca", "step-ca is not built; run `cargo xtask test`, which builds it from Debian's source");
            return None;
        };
        let folder = TempDir::new();
        let port = free_port();
        let root = Authority::make("Test Root", None);
        let between = Authority::make("Test Intermediate", Some(&root));
        let (ours, theirs) = (Authority::make("Enrollment CA", None), Authority::make("Other CA", None));
        for (name, text) in [("root.crt", &root.pem), ("between.crt", &between.pem), ("between.key", &between.key_pem)] {
            write_private(&folder.join(name), text);
        }
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let provisioner = |name: &str, authority: &Authority| {
            let claims = serde_json::json!({
                "minTLSCertDuration": "1s", "maxTLSCertDuration": "2400h", "defaultTLSCertDuration": life,
            });
            serde_json::json!({ "type": "X5C", "name": name, "roots": base64(&authority.pem), "claims": claims })
        };
        let config = serde_json::json!({
            "root": folder.join("root.crt"),
            "crt": folder.join("between.crt"),
            "key": folder.join("between.key"),
            "address": format!("127.0.0.1:{port}"),
            "dnsNames": ["localhost", "127.0.0.1"],
            "authority": {
                "backdate": "0s",
                "provisioners": [provisioner(STEP_CA_PROVISIONER, &ours), provisioner(STEP_CA_OTHER_PROVISIONER, &theirs)],
            },
        });
        let config_path = folder.join("ca.json");
        std::fs::write(&config_path, config.to_string()).expect("the configuration is written");
        let launch = Launch::at(path).arg(config_path);
        let enrollment = ours.enrollment(&folder, "enrollment");
        let other_enrollment = theirs.enrollment(&folder, "other");
        let program = Self::run(&launch, &folder);
        Some(Self { launch, port, enrollment, other_enrollment, root_pem: root.pem, program, folder })
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Returns the path of the root certificate.
    pub fn root_file(&self) -> PathBuf {
        self.folder.join("root.crt")
    }

    /// Returns the root certificate in PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// Returns the credentials of the control plane at [`STEP_CA_PROVISIONER`].
    pub fn enrollment(&self) -> &CertificateFiles {
        &self.enrollment
    }

    /// Returns the credentials of another party at [`STEP_CA_OTHER_PROVISIONER`].
    pub fn other_enrollment(&self) -> &CertificateFiles {
        &self.other_enrollment
    }

    /// Kills the server without a clean shutdown.
    pub fn kill(&mut self) {
        self.program.sigkill();
    }

    /// Freezes the server, so that its connections stay open but get no answers.
    pub fn pause(&mut self) {
        self.program.pause();
    }

    /// Resumes the server after [`StepCaServer::pause`].
    pub fn resume(&mut self) {
        self.program.resume();
    }

    /// Starts a killed server again with the same keys. Returns when it accepts connections.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(!self.program.is_running(), "step-ca was not killed");
        self.program = Self::run(&self.launch, &self.folder);
    }

    fn run(launch: &Launch, folder: &TempDir) -> Program {
        let mut program = launch.start(folder.path());
        program.wait_for_line("Serving HTTPS", PATIENCE);
        program
    }
}

fn write_private(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).expect("a file of the test is written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("its mode is set");
}
